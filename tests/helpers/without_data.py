"""Statements that build converted models where there is no data: on the meta device, with fake tensors.

They are for fresh processes (`test_imports.py`), because a module that is imported there may compute, and a cache that
is filled there stays.
"""

AFTERWARDS = """
source = timm.create_model("test_resnet").eval()
x = torch.randn(1, 3, 64, 64)
with torch.no_grad():
    expected = source(x)
    assert (tcnn.convert(source).model(x) - expected).norm() < 1e-5 * expected.norm()
    soft = timm.create_model("t_test_resnet", temperature=1.0).eval()
    assert soft(x).isfinite().all()
"""
"""Real models of the same geometry compute as if nothing had been."""

META = """
import torch, tcnn, timm
with torch.device("meta"):
    model = timm.create_model("t_test_resnet")
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}
    assert model(torch.empty(1, 3, 64, 64)).shape == (1, 1000)
    model.layer4[0].conv1.set_temperature(1)
    assert model(torch.empty(1, 3, 64, 64)).shape == (1, 1000)
"""

FAKE = """
import torch, tcnn, timm
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
with FakeTensorMode():
    model = timm.create_model("t_test_resnet")
    assert all(isinstance(t, FakeTensor) for t in (*model.parameters(), *model.buffers()))
    assert model(torch.empty(1, 3, 64, 64)).shape == (1, 1000)
    model.train()(torch.empty(2, 3, 64, 64)).sum().backward()
    assert timm.create_model("t_test_resnet", stride="remove")(torch.empty(2, 3, 64, 64)).shape == (2, 1000)
"""

DEVICE = """
import torch, tcnn, timm
model = timm.create_model("t_test_resnet", device="meta", dtype=torch.bfloat16)
assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}
assert {t.dtype for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()} == {torch.bfloat16}
"""


WAYS = {"meta": META + AFTERWARDS, "fake": FAKE + AFTERWARDS, "device=": DEVICE + AFTERWARDS}
