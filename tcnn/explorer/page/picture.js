// A picture for those who have none at hand: a few things with edges, stripes and plain parts, drawn here.

const SIZE = 448;

export function testPicture() {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIZE;
  const pen = canvas.getContext("2d");
  const sky = pen.createLinearGradient(0, 0, 0, 300);
  sky.addColorStop(0, "#4a90d9");
  sky.addColorStop(1, "#d8ecfb");
  fill(pen, sky, 0, 0, SIZE, 310);
  fill(pen, "#5c9a3d", 0, 300, SIZE, 148);
  disc(pen, "#ffd84a", 360, 84, 46);
  fill(pen, "#c8553d", 70, 190, 150, 130);
  for (let row = 0; row < 6; row += 1) fill(pen, "#a84430", 70, 190 + row * 22, 150, 3);
  fill(pen, "#f4e9d0", 95, 220, 36, 40);
  fill(pen, "#5d3a1a", 160, 250, 34, 70);
  pen.fillStyle = "#4b2e20";
  pen.beginPath();
  pen.moveTo(55, 192);
  pen.lineTo(145, 120);
  pen.lineTo(235, 192);
  pen.fill();
  fill(pen, "#6b4423", 322, 230, 22, 95);
  for (const [x, y, r] of [[333, 190, 48], [303, 215, 34], [365, 216, 34]]) disc(pen, "#2f6b2b", x, y, r);
  for (let x = 0; x < SIZE; x += 28) fill(pen, "#f7f3e8", x, 372, 16, 44);
  fill(pen, "#f7f3e8", 0, 384, SIZE, 7);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

function fill(pen, colour, ...place) {
  pen.fillStyle = colour;
  pen.fillRect(...place);
}

function disc(pen, colour, x, y, r) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, r, 0, 2 * Math.PI);
  pen.fill();
}
