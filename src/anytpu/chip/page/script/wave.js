// The systolic array, cycle by cycle: recorded registers of a simulated array; nothing is computed here.
function startWave(data) {
  const svg = document.querySelector("#wave svg.stage");
  const said = document.querySelector("#wave .readout");
  const { lanes, columns, rows, inputs, steps, results, lower } = data;
  const shifts = steps.filter((step) => step.shifting).length;
  const CELL = 74, TALL = 48, QUEUE = 3, LEFT = QUEUE * 42 + 24, TOP = 26, LINE = 25;
  const bottom = TOP + lanes * TALL, sums = bottom + (lower ? 56 : 34);
  const width = LEFT + columns * CELL + 8, height = sums + rows * LINE + 6;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const text = (x, y, size, classes, anchor = "middle") =>
    svgElement("text", { x, y, "font-size": size, class: classes, "text-anchor": anchor }, svg, "");
  text(LEFT - 14, TOP - 9, 12, "fill-muted", "end").textContent = "numbers come in";
  text(LEFT + 4, TOP - 9, 12, "fill-muted", "start").textContent = "in a cell: its weight, the number that passes right, the sum that passes down";
  const captions = lower
    ? [`not shown: the rows of the array below (${lower}) add their products before the accumulators`,
      `the sums of these ${lanes} rows of the array, a row for each row that came in`]
    : ["accumulators: the sums of this pass, a row for each row that came in"];
  captions.forEach((caption, n) => {
    text(LEFT + 4, bottom + 23 + n * 22, 12, "fill-muted", "start").textContent = caption;
  });
  const cells = [];
  for (let k = 0; k < lanes; k++) {
    for (let m = 0; m < columns; m++) {
      const x = LEFT + m * CELL, y = TOP + k * TALL;
      const box = svgElement("rect", { x: x + 1.5, y: y + 1.5, width: CELL - 3, height: TALL - 3, rx: 4 }, svg);
      cells.push({ box, weight: text(x + 7, y + 16, 11.5, "wave-weight", "start"),
        input: text(x + CELL - 7, y + 16, 12, "wave-in", "end"), sum: text(x + CELL - 7, y + 37, 14, "wave-sum", "end") });
    }
  }
  const queue = Array.from({ length: lanes }, (_, k) =>
    Array.from({ length: QUEUE }, (_, n) => text(LEFT - 14 - n * 42, TOP + k * TALL + 20, 12, "wave-in", "end")));
  const table = Array.from({ length: rows }, (_, i) =>
    Array.from({ length: columns }, (_, m) => {
      const x = LEFT + m * CELL, y = sums + i * LINE;
      const box = svgElement("rect", { x: x + 1.5, y: y + 1, width: CELL - 3, height: LINE - 2, rx: 3 }, svg);
      return { box, sum: text(x + CELL - 7, y + 17.5, 13, "wave-sum", "end") };
    }));
  for (let i = 0; i < rows; i++) {
    text(LEFT - 14, sums + i * LINE + 17.5, 12, "fill-muted", "end").textContent = `row ${data.first_row + i}`;
  }
  const shade = (row) => (row === null ? "wave-idle" : `wave-row fill-c${row % 8}`);

  function show(cycle) {
    const step = steps[cycle];
    cells.forEach((cell, n) => {
      const row = step.row[n], hasWeight = !step.shifting || Math.floor(n / columns) <= cycle;
      cell.box.setAttribute("class", step.shifting && hasWeight ? "wave-shift" : shade(row));
      cell.weight.textContent = hasWeight && (step.shifting || row !== null || step.weight[n]) ? step.weight[n] : "";
      cell.input.textContent = row === null ? "" : step.input[n];
      cell.sum.textContent = row === null ? "" : step.sum[n];
    });
    queue.forEach((places, k) => places.forEach((place, n) => {
      const row = cycle - shifts + 1 - k + n;
      place.textContent = row >= 0 && row < rows ? inputs[row][k] : "";
    }));
    let done = 0;
    table.forEach((line, i) => line.forEach((one, m) => {
      const isDone = results[i][m].cycle <= cycle;
      done += isDone;
      one.box.setAttribute("class", isDone ? `wave-row fill-c${i % 8}` : "wave-idle");
      one.sum.textContent = isDone ? results[i][m].sum : "";
    }));
    const busy = step.row.filter((row) => row !== null).length;
    const doing = step.shifting ? `the tile is shifted in, row by row from above (${cycle + 1} of ${shifts})`
      : `${busy} of ${lanes * columns} cells multiply and add`;
    said.textContent = `Cycle ${cycle + 1} of ${steps.length}: ${doing}; ${done} of ${rows * columns} sums are done.`;
    return said.textContent;
  }
  player(document.querySelector("#wave .player"), steps.length - 1, show, 2.5, Math.min(shifts + lanes, steps.length - 1));
  drawTile(data.tile);
}

// The whole tile, one pixel per weight: blue above 0, red below; the opacity is the magnitude.
function drawTile(tile) {
  const canvas = document.querySelector("#wave canvas");
  if (!canvas || !tile) return;
  const bytes = Int8Array.from(atob(tile.weights), (letter) => letter.charCodeAt(0));
  canvas.width = canvas.height = tile.size;
  const paint = () => {
    const colour = colours(), picture = new ImageData(tile.size, tile.size);
    const rgb = (name) => [1, 3, 5].map((start) => parseInt(colour(name).slice(start, start + 2), 16));
    const paper = rgb("soft"), above = rgb("c0"), below = rgb("c3");
    bytes.forEach((weight, n) => {
      const strength = Math.sqrt(Math.abs(weight) / 127), ink = weight > 0 ? above : below;
      for (let part = 0; part < 3; part++) picture.data[4 * n + part] = paper[part] + (ink[part] - paper[part]) * strength;
      picture.data[4 * n + 3] = 255;
    });
    canvas.getContext("2d").putImageData(picture, 0, 0);
  };
  paint();
  isDark.addEventListener("change", paint);
}
