"""ES modules as one script: what they import and export of each other stays what it is, and other forms are refused."""

import re
import shutil
import subprocess

import pytest

from tcnn.analysis.charts import bundle
from tcnn.analysis.charts.bundle import concatenate
from tcnn_api.routes.operation import pages

HOUSE = {
    "app.js": 'import * as job from "./job/job.js";\nimport { NAME as called, shout } from "./parts.js";\n'
    "globalThis.told = [job.show(), called, shout(called), [...job.count()]];\n",
    "job/job.js": 'import { shout } from "../parts.js";\nexport { NAME } from "../parts.js";\n'
    'const hidden = "a job";\nexport const show = () => shout(hidden);\nexport function* count() { yield 1; }\n'
    'export const worker = () => new URL("../server/shared.js", import.meta.url);\n',
    "parts.js": 'const hidden = "!";\nexport const NAME = "tcnn";\n'
    "export function shout(text) { return text + hidden; }\n",
}


def test_names_meet_as_between_modules() -> None:
    script = concatenate(HOUSE, "app.js")
    assert re.findall(r"^// (.*)$", script, re.MULTILINE) == ["parts.js", "job/job.js", "app.js"], "each once, in order"
    assert 'new URL("./server/shared.js", import.meta.url)' in script, "beside the script, not beside the module"
    if node := shutil.which("node"):
        program = script + "console.log(JSON.stringify(globalThis.told));\n"
        done = subprocess.run([node, "--input-type=module"], input=program, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == '["a job!","tcnn","tcnn!",[1]]'


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("export default 1;", "found 'export default 1;'"),
        ("export let count = 0;", "found 'export let count = 0;'"),
        ('import { a,\n  b } from "./parts.js";', "found 'import { a,'"),
        ('import "./parts.js";', "found 'import \"./parts.js\";'"),
        ("const here = import.meta.url;", "found 'const here = import.meta.url;'"),
        ('import { a } from "./none.js";', "app.js → none.js: there is no such module"),
        ('import { a } from "./job/job.js";', "app.js → job/job.js → app.js: a circle"),
    ],
)
def test_what_is_not_known_is_refused(source: str, said: str) -> None:
    modules = {**HOUSE, "app.js": source, "job/job.js": 'import { b } from "../app.js";\nexport const a = b;\n'}
    with pytest.raises(ValueError, match=re.escape(said)):
        concatenate(modules, "app.js")


def test_the_dashboard_and_reports_have_each_of_their_modules_once() -> None:
    page = pages.assets()["app.js"].content.decode()
    told = re.findall(r"^// ([\w/-]+\.js)$", page, re.MULTILINE)
    alone = {"docs.js", "theme.js", *(f"server/{name}.js" for name in ("shared",))}
    assert sorted(told) == sorted({name for name in pages.assets() if name.endswith(".js")} - alone)
    assert re.findall(r"^// ([\w/-]+\.js)$", bundle.script(), re.MULTILINE)[-1] == "report.js"
