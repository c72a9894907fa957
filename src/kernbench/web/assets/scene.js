/* The machine itself, without a run: dies, parts and wires, as much of them as one can see at this scale. */
(() => {
  /** From how many pixels a mm on things are drawn. */
  const SEEN = { pes: 2, memories: 3, wires: 3.6, parts: 6, labels: 12, engines: 24, engineNames: 42 };
  const FONT =
    'Inter, -apple-system, BlinkMacSystemFont, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif';
  const SHORT = {
    pe_scheduler: "SCHED",
    pe_fetch_store: "FETCH",
    pe_dma: "DMA",
    pe_gemm: "GEMM",
    pe_math: "MATH",
    pe_tcm: "TCM",
    pe_mmu: "MMU",
    pe_cpu: "CPU",
    pe_ipcq: "QUEUES",
    m_cpu: "M_CPU",
    sram: "SRAM",
    hbm_ctrl: "HBM",
    noc_router: "",
    xbar: "xbar",
    ucie: "UCIe",
    sip_port: "",
    pcie_ep: "PCIe",
    io_cpu: "IO CPU",
    io_noc: "IO NoC",
  };
  const LEAST_FONT = 8;
  const LETTER = 0.66; // width of a letter, as a part of its height; capitals are the widest

  let dies = [];
  let boardNodes = [];

  /** Sort parts and links by the die they are on, so that a die out of sight costs nothing. */
  const build = () => {
    const { machine } = KB;
    const { nodes, edges } = machine;
    const found = new Map();
    machine.sips.forEach((sip, s) =>
      sip.cubes.forEach((rect, c) => {
        found.set(`${s}.${c}`, { id: `${s}.${c}`, sip: s, cube: c, rect, nodes: [], edges: [], pes: [] });
      }),
    );
    boardNodes = [];
    nodes.id.forEach((_, node) => {
      if (nodes.cube[node] < 0) boardNodes.push(node);
      else if (nodes.pe[node] < 0) found.get(`${nodes.sip[node]}.${nodes.cube[node]}`).nodes.push(node);
    });
    machine.pes.forEach(([s, c], pe) => found.get(`${s}.${c}`).pes.push(pe));
    KB.outerEdges = [];
    edges.src.forEach((src, edge) => {
      if (machine.rank[edge] === 2) found.get(`${nodes.sip[src]}.${nodes.cube[src]}`).edges.push(edge);
      else KB.outerEdges.push(edge);
    });
    dies = [...found.values()];
    KB.dieById = found;
  };

  const overlaps = ([west, north, east, south], [x, y, w, h]) => x < east && x + w > west && y < south && y + h > north;
  const visibleDies = () => {
    const view = KB.camera.view;
    return dies.filter((die) => overlaps(view, die.rect));
  };

  const path = (context, line) => {
    const { scale, x, y, width, height } = KB.camera;
    const [ox, oy] = [width / 2 - x * scale, height / 2 - y * scale];
    context.moveTo(line[0] * scale + ox, line[1] * scale + oy);
    for (let at = 2; at < line.length; at += 2) context.lineTo(line[at] * scale + ox, line[at + 1] * scale + oy);
  };

  /** How wide a link is drawn: by its rank, within limits that keep it visible and out of its neighbours' way. */
  const widthOf = (rank, active) => {
    const { scale } = KB.camera;
    if (rank === 0) return KB.clamp(scale * 0.34, active ? 1.6 : 1, 7);
    if (rank === 1) return KB.clamp(scale * 0.24, active ? 1.6 : 1, 16);
    return KB.clamp(scale * 0.085, active ? 1.2 : 0.5, 9);
  };

  const box = (context, [x, y, w, h], fill, line, radius = 0, width = 1) => {
    const [px, py] = KB.camera.toScreen(x, y);
    const scale = KB.camera.scale;
    context.beginPath();
    context.roundRect(px, py, w * scale, h * scale, radius * scale);
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    if (line) {
      context.strokeStyle = line;
      context.lineWidth = width;
      context.stroke();
    }
  };

  /** Draws words in a rectangle, as large as fits up to `most` pixels; returns false if they would be unreadable.
      `least` letters have to fit, so that rectangles side by side have words of one size. */
  const label = (context, words, [x, y, w, h], colour, most, weight = 500, least = 0) => {
    if (!words) return false;
    const { scale } = KB.camera;
    const lines = words.split("\n");
    const longest = Math.max(least, ...lines.map((line) => line.length));
    const size = Math.min(most, (w * scale * 0.92) / (longest * LETTER), (h * scale * 0.9) / (lines.length * 1.2));
    if (size < LEAST_FONT) return false;
    const [px, py] = KB.camera.toScreen(x + w / 2, y + h / 2);
    context.font = `${weight} ${size.toFixed(1)}px ${FONT}`;
    context.fillStyle = colour;
    context.textAlign = "center";
    context.textBaseline = "middle";
    lines.forEach((line, at) => context.fillText(line, px, py + (at - (lines.length - 1) / 2) * size * 1.2));
    return true;
  };

  const rectOf = (node) => {
    const { x, y, w, h } = KB.machine.nodes;
    return [x[node] - w[node] / 2, y[node] - h[node] / 2, w[node], h[node]];
  };

  const nodeName = (node) => {
    const { machine } = KB;
    const kind = machine.kindOf(node);
    if (kind === "host" || kind === "switch") return kind;
    const short = SHORT[kind] === undefined ? kind : SHORT[kind];
    return kind === "hbm_ctrl" ? `HBM ${machine.nodes.id[node].match(/\d+$/)}` : short;
  };

  const strokeEdges = (context, edges, colour, rank) => {
    context.beginPath();
    for (const edge of edges) if (KB.machine.rank[edge] === rank) path(context, KB.machine.lines[edge]);
    context.strokeStyle = colour;
    context.lineWidth = widthOf(rank, false);
    context.lineJoin = "round";
    context.stroke();
  };

  const isMemory = (node) => KB.machine.kindOf(node) === "hbm_ctrl";

  const drawDie = (context, die, page, scale) => {
    box(context, die.rect, page.die, page["die-line"], 0.25);
    if (scale >= SEEN.wires) strokeEdges(context, die.edges, page.wire, 2);
    if (scale >= SEEN.pes) {
      for (const pe of die.pes)
        box(context, KB.machine.pes[pe].slice(3, 7), page.part, scale > 5 ? page["part-line"] : null, 0.06, 0.8);
    }
    if (scale >= SEEN.memories) {
      for (const node of die.nodes)
        if (isMemory(node)) box(context, rectOf(node), page.part, page["part-line"], 0.05, 0.8);
    }
    if (scale >= SEEN.engines) {
      for (const pe of die.pes)
        for (const node of KB.machine.peNodes[pe])
          box(context, inset(rectOf(node), 0.03), page.die, page["part-line"], 0.02, 0.8);
    }
  };

  const inset = ([x, y, w, h], by) => [x + by, y + by, w - 2 * by, h - 2 * by];

  /** The static layer below the traffic: dies, PEs, wires. */
  const draw = (canvas) => {
    const { context, width, height } = KB.fitCanvas(canvas);
    const { page } = KB.colours;
    const { scale } = KB.camera;
    context.clearRect(0, 0, width, height);
    KB.machine.sips.forEach((sip) => {
      box(context, sip.package, page.package, page.line, 0.8);
      box(context, sip.chiplet, page.die, page["die-line"], 0.25);
    });
    strokeEdges(context, KB.outerEdges, page.wire, 0);
    strokeEdges(context, KB.outerEdges, page.wire, 1);
    for (const die of visibleDies()) drawDie(context, die, page, scale);
    KB.machine.sips.forEach((sip, number) =>
      nameAbove(context, sip.package, `SIP ${number}`, page.ink, KB.clamp(scale * 1.4, 10, 15)),
    );
  };

  const nameAbove = (context, [x, y], name, colour, size) => {
    const [px, py] = KB.camera.toScreen(x, y);
    context.font = `600 ${size}px ${FONT}`;
    context.fillStyle = colour;
    context.textAlign = "left";
    context.textBaseline = "bottom";
    context.fillText(name, px + 2, py - 4);
  };

  /** The name of a PE between it and the edge of the die. */
  const peName = (context, die, pe, colour) => {
    const [, , number, x, y, w, h] = KB.machine.pes[pe];
    const [, top, , height] = die.rect;
    const above = y + h / 2 < top + height / 2;
    const room = above ? y - top : top + height - y - h;
    label(context, `PE ${number}`, [x, above ? top : y + h, w, room], colour, 13, 600);
  };

  /** The layer above the traffic: the parts that links join, without heat colours. */
  const drawParts = (canvas) => {
    const { context, width, height } = KB.fitCanvas(canvas);
    const { page } = KB.colours;
    const { scale } = KB.camera;
    context.clearRect(0, 0, width, height);
    for (const node of boardNodes) {
      const large = ["host", "switch"].includes(KB.machine.kindOf(node));
      box(context, rectOf(node), large ? page.die : page.part, page["part-line"], large ? 0.5 : 0.12, 0.8);
      label(context, nodeName(node), rectOf(node), page.muted, 13);
    }
    for (const die of visibleDies()) {
      const [x, y, w, h] = die.rect;
      if (scale < SEEN.engines)
        label(context, `${die.cube}`, [x + w * 0.35, y + h * 0.35, w * 0.3, h * 0.3], page.muted, 13, 600);
      if (scale < SEEN.parts) continue;
      for (const node of die.nodes) {
        if (isMemory(node)) continue;
        box(context, rectOf(node), page.part, page["part-line"], 0.05, 0.8);
        if (scale >= SEEN.labels) label(context, nodeName(node), rectOf(node), page.muted, 13);
      }
      if (scale < SEEN.engines) continue;
      for (const pe of die.pes) peName(context, die, pe, page.muted);
      nameAbove(context, die.rect, KB.machine.placeName(die.sip, die.cube, -1), page.ink, 13);
    }
  };

  KB.scene = {
    SEEN,
    FONT,
    build,
    draw,
    drawParts,
    box,
    label,
    path,
    rectOf,
    inset,
    nodeName,
    widthOf,
    visibleDies,
    get boardNodes() {
      return boardNodes;
    },
  };
})();
