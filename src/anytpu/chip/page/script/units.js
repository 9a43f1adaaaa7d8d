// A product of 8 x 8 by 8 x 8 on three kinds of units, one operation of each per step.
function startUnits() {
  const SIZE = 8, CELL = 26, ALL = SIZE ** 3;
  // Number of products that the cell (row, column) of the result has summed after some operations.
  const kinds = {
    scalar: {
      ops: (at) => Math.min(at, ALL),
      has: (at, i, j) => clamp(at - (i * SIZE + j) * SIZE, 0, SIZE),
      reads: (ops) => 2 * ops,
    },
    vector: {
      ops: (at) => Math.min(at, SIZE * SIZE),
      has: (at, i) => clamp(at - i * SIZE, 0, SIZE),
      reads: (ops) => (SIZE + 1) * ops,
    },
    matrix: {
      ops: (at) => Math.min(at, 3 * SIZE - 2),
      has: (at, i, j) => clamp(at - i - j, 0, SIZE),
      // The weights are in the array already; each activation is read once and passed on from cell to cell.
      reads: (ops) => Array.from({ length: SIZE }, (_, k) => clamp(ops - k, 0, SIZE)).reduce((sum, n) => sum + n),
    },
  };
  const panels = Object.entries(kinds).map(([name, kind]) => {
    const root = document.querySelector(`#units [data-unit=${name}]`);
    const svg = root.querySelector("svg");
    svg.setAttribute("viewBox", `0 0 ${SIZE * CELL} ${SIZE * CELL}`);
    const cells = Array.from({ length: SIZE * SIZE }, (_, n) => {
      const place = { x: (n % SIZE) * CELL + 1, y: Math.floor(n / SIZE) * CELL + 1, width: CELL - 2, height: CELL - 2, rx: 3 };
      svgElement("rect", { ...place, class: "unit-empty" }, svg);
      return svgElement("rect", { ...place, class: "fill-c0" }, svg);
    });
    return { kind, cells, said: root.querySelector(".said-of") };
  });

  function show(at) {
    const told = panels.map(({ kind, cells, said }) => {
      let done = 0;
      cells.forEach((cell, n) => {
        const i = Math.floor(n / SIZE), j = n % SIZE, has = kind.has(at, i, j);
        done += has;
        cell.setAttribute("opacity", has / SIZE);
        cell.classList.toggle("unit-busy", at > 0 && has > kind.has(at - 1, i, j));
      });
      const ops = kind.ops(at);
      said.textContent = `${format(ops)} operations, ${format(done)} of ${ALL} multiply-adds, ${format(kind.reads(ops))} numbers read`;
      return done === ALL ? "done" : `${done} of ${ALL}`;
    });
    return `step ${at}: scalar ${told[0]}, vector ${told[1]}, matrix ${told[2]}`;
  }
  player(document.querySelector("#units .player"), ALL, show, 24, 12);
}
