/* The side panel: the numbers of what is selected, else of the machine and the run. */
(() => {
  const { el, format } = KB;

  const facts = (rows) =>
    el(
      "dl",
      { class: "facts" },
      ...rows.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })]),
    );
  const section = (title, ...content) => el("section", {}, el("h3", { text: title }), ...content);
  const heading = (title, below) => el("h2", {}, title, el("small", { text: below }));
  const link = (text, kind, id) => el("button", { type: "button", text, onclick: () => KB.select(kind, id) });
  const { meters, meterRow: row } = KB;

  const scope = () => {
    const window = KB.current();
    if (KB.state.mode === "average") return `over the ${window.label}, ${format.time(window.span)}`;
    const step = window.binPs(KB.state.bin);
    return `${KB.since(window.binStart(KB.state.bin), step)} + ${format.time(step)} from ${KB.zero()}`;
  };

  const actions = (thing) =>
    el(
      "div",
      { class: "actions" },
      el("button", { type: "button", text: "Zoom to it", onclick: () => KB.map.zoomTo(thing) }),
      thing.kind === "pe" && KB.run
        ? el("button", { type: "button", text: "Timeline", onclick: () => KB.set({ tab: "timeline" }) })
        : null,
      el("button", { type: "button", text: "Deselect", onclick: () => KB.select(null) }),
    );

  /** Bars of a figure for each bin of the window, the moment shown marked. */
  const spark = (values, most) => {
    const canvas = el("canvas", { class: "spark", "aria-hidden": "true" });
    requestAnimationFrame(() => KB.drawBars(canvas, values, most, KB.state.mode === "moment" ? KB.state.bin : -1));
    return canvas;
  };

  KB.drawBars = (canvas, values, most, marked) => {
    const { context, width, height } = KB.fitCanvas(canvas);
    const { page } = KB.colours;
    context.clearRect(0, 0, width, height);
    const step = width / values.length;
    values.forEach((value, at) => {
      const size = most ? (value / most) * (height - 1) : 0;
      context.fillStyle = at === marked ? page.ink : page.accent;
      // Whole pixels, so that narrow bars side by side do not shimmer.
      const [from, to] = [Math.round(at * step), Math.round((at + 1) * step)];
      if (size > 0)
        context.fillRect(
          from,
          height - Math.max(size, 0.7),
          Math.max(to - from - (step > 4 ? 1 : 0), 1),
          Math.max(size, 0.7),
        );
    });
    context.fillStyle = page["line-strong"];
    context.fillRect(0, height - 1, width, 1);
    if (marked >= 0) context.fillRect((marked + 0.5) * step - 0.5, 0, 1, height);
  };

  const linksOf = (node) => {
    const { machine } = KB;
    const [window, bin] = [KB.current(), KB.shownBin()];
    const rows = machine.edgesOf[node].map((edge) => {
      const out = machine.edges.src[edge] === node;
      const other = out ? machine.edges.dst[edge] : machine.edges.src[edge];
      const name = link(`${out ? "→" : "←"} ${machine.nodes.id[other].split(".").slice(-2).join(".")}`, "edge", edge);
      if (!window)
        return el(
          "tr",
          {},
          el("th", { scope: "row" }, name),
          el("td", { text: format.rate(machine.edges.bw_gbs[edge]) }),
        );
      return row(
        name,
        [format.size(window.bytes(edge, bin)), format.share(window.utilisation(edge, bin))],
        window.utilisation(edge, bin),
      );
    });
    return section("Links", meters(window ? ["link", "bytes", "used", ""] : ["link", "bandwidth"], rows));
  };

  /** What the queues of a PE sent. */
  const queues = (sent) => {
    const most = Math.max(1, ...sent.queues.map(([, , nbytes]) => nbytes));
    const rows = sent.queues.map(([direction, messages, nbytes]) =>
      row(direction, [format.count(messages), format.size(nbytes)], nbytes / most),
    );
    return section(
      `Queues, sent in the ${KB.run.windows[0].label}`,
      meters(["queue", "messages", "bytes", ""], rows),
      facts([["busy", `${format.ns(sent.busy)} ns`]]),
    );
  };

  const ofPe = (pe) => {
    const { machine, run } = KB;
    const [sip, cube, number, , , , , slice] = machine.pes[pe];
    const parts = [
      heading(machine.nameOfPe(pe), `sip${sip}.cube${cube}.pe${number} · local slice HBM ${slice}`),
      actions({ kind: "pe", id: pe }),
    ];
    if (!run) return [...parts, el("p", { text: "No run: nothing to count." })];
    const active = run.activeAt[pe];
    if (active < 0) return [...parts, el("p", { text: "This PE did nothing in this run." })];
    const [window, bin] = [KB.current(), KB.shownBin()];
    const time = window.ps(bin);
    const rows = run.engines.map((name, at) => {
      const busy = window.busyOf(active, at, bin);
      return busy || name === "any engine"
        ? row(name, [`${format.ns(busy)}`, format.share(busy / time)], busy / time, { colour: KB.colours.engine(name) })
        : null;
    });
    parts.push(section(`Busy · ${scope()}`, meters(["engine", "ns", "of the time", ""], rows.filter(Boolean))));
    const last = run.rows.length;
    const values = Array.from({ length: window.bins }, (_, at) => window.busyOf(active, last, at) / window.binPs(at));
    parts.push(section("Any engine busy, 0–100 %, over the window", spark(values, 1)));
    const dma = machine.peNodes[pe].find((node) => machine.kindOf(node) === "pe_dma");
    parts.push(linksOf(dma));
    const sent = run.queuesOf.get(pe);
    if (sent) parts.push(queues(sent));
    const counts = run.rows.map((name, at) => [name, run.spanCount(active, at)]).filter(([, count]) => count);
    parts.push(
      section(
        `Operations in the ${run.windows[0].label}`,
        facts(counts.map(([name, count]) => [name === "cpu" ? "kernels" : name, format.count(count)])),
      ),
    );
    return parts;
  };

  const ofEdge = (edge) => {
    const { machine, run } = KB;
    const { edges } = machine;
    const parts = [
      heading(machine.nodes.id[edges.src[edge]], `→ ${machine.nodes.id[edges.dst[edge]]}`),
      actions({ kind: "edge", id: edge }),
    ];
    parts.push(
      section(
        "Link",
        facts([
          ["class", machine.classOf(edge)],
          ["bandwidth", format.rate(edges.bw_gbs[edge])],
          ["length", format.mm(edges.length_mm[edge])],
          ["time of a hop", `${format.figure(edges.hop_ns[edge], 3)} ns`],
          ["FIFO at its end", edges.fifo_bytes[edge] === null ? "unbounded" : format.size(edges.fifo_bytes[edge])],
        ]),
      ),
    );
    if (!run) return parts;
    const usage = run.usage.get(edge);
    if (!usage) return [...parts, el("p", { text: "It carried nothing in this run." })];
    const [window, bin] = [KB.current(), KB.shownBin()];
    const used = window.utilisation(edge, bin);
    parts.push(
      section(
        `Traffic · ${scope()}`,
        facts([
          ["bytes", format.size(window.bytes(edge, bin))],
          ["rate", format.rate((window.bytes(edge, bin) * 1000) / window.ps(bin))],
          ["of its bandwidth", format.share(used)],
        ]),
      ),
    );
    const values = Array.from({ length: window.bins }, (_, at) => window.utilisation(edge, at));
    parts.push(section("Bandwidth used, 0–100 %, over the window", spark(values, 1)));
    parts.push(
      section(
        "Whole run",
        facts([
          ["bytes", format.size(usage.nbytes)],
          ["busy", `${format.ns(usage.busy)} ns`],
          ["most in its FIFO", format.size(usage.fifo)],
        ]),
      ),
    );
    return parts;
  };

  const ofNode = (node) => {
    const { machine, run } = KB;
    const kind = machine.kindOf(node);
    const impl = machine.nodes.impl;
    const parts = [heading(machine.nodes.id[node], kind), actions({ kind: "node", id: node })];
    const rows = [
      ["implementation", impl.names[impl.at[node]]],
      ["time to pass", `${format.figure(machine.nodes.overhead_ns[node], 3)} ns`],
    ];
    if (kind === "hbm_ctrl") rows.push(["slice sustains", format.rate(machine.slice_bw_gbs)]);
    parts.push(section("Part", facts(rows)));
    if (run && machine.nodes.memory[node]) {
      const window = KB.current();
      const values = Array.from({ length: window.bins }, (_, at) => window.memoryShare(node, at));
      parts.push(
        section(`Busy · ${scope()}`, facts([["of the time", format.share(window.memoryShare(node, KB.shownBin()))]])),
        section("Busy, 0–100 %, over the window", spark(values, 1)),
      );
    }
    parts.push(linksOf(node));
    return parts;
  };

  const ofCube = (id) => {
    const { machine, run } = KB;
    const die = KB.dieById.get(id);
    const parts = [
      heading(
        machine.placeName(die.sip, die.cube, -1),
        `${die.pes.length} PEs, ${die.nodes.filter((node) => machine.kindOf(node) === "hbm_ctrl").length} HBM slices`,
      ),
      actions({ kind: "cube", id }),
    ];
    if (!run) return parts;
    const rows = die.pes.map((pe) =>
      row(link(`PE ${machine.pes[pe][2]}`, "pe", pe), [format.share(KB.heat.peShare(pe))], KB.heat.peShare(pe)),
    );
    const engine = run.engines[KB.state.engine < 0 ? run.rows.length : KB.state.engine];
    parts.push(section(`PEs, ${engine} · ${scope()}`, meters(["PE", "busy", ""], rows)));
    const slices = die.nodes.filter((node) => machine.kindOf(node) === "hbm_ctrl");
    const use = (node) => KB.current().memoryShare(node, KB.shownBin());
    parts.push(
      section(
        "HBM slices",
        meters(
          ["slice", "busy", ""],
          slices.map((node) => row(link(KB.scene.nodeName(node), "node", node), [format.share(use(node))], use(node))),
        ),
      ),
    );
    return parts;
  };

  const overview = () => {
    const { machine, run } = KB;
    const parts = [];
    if (run) {
      parts.push(heading(run.bench, run.device === "all" ? "on all SIPs" : run.device));
      parts.push(
        section(
          "Run",
          facts([
            ["status", run.status],
            ["simulated", format.time(run.sim_ps)],
            ...(run.begin_ps ? [["loading before that", format.time(run.begin_ps)]] : []),
            ["requests", format.count(run.requests.length)],
            ["PEs that worked", `${format.count(run.active.length)} of ${format.count(machine.pes.length)}`],
            ["links that carried", `${format.count(run.links.length)} of ${format.count(machine.edges.src.length)}`],
            ["transfers", format.count(run.transfers)],
            ["events", format.count(run.events)],
          ]),
        ),
      );
      const params = Object.entries(run.params);
      if (params.length) parts.push(section("Parameters", facts(params)));
    } else {
      parts.push(heading("No run", "the machine only"));
      parts.push(el("p", {}, "Put a run into the page with ", el("code", { text: "kernbench web --bench NAME" }), "."));
    }
    parts.push(section("Machine", facts(machine.facts.filter(([name]) => !["digest"].includes(name)))));
    parts.push(
      el("p", { text: "Click a PE, a link or a part for its numbers; double-click to zoom to it. ? lists the keys." }),
    );
    return parts;
  };

  const OF = { pe: ofPe, edge: ofEdge, node: ofNode, cube: ofCube };
  const draw = () => {
    const { selected } = KB.state;
    const panel = KB.byId("details");
    // Numbers change during playback; the focus on a button of the panel stays.
    const at = [...panel.querySelectorAll("button")].indexOf(document.activeElement);
    panel.replaceChildren(...(selected ? OF[selected.kind](selected.id) : overview()));
    const buttons = panel.querySelectorAll("button");
    if (at >= 0 && buttons[at]) buttons[at].focus({ preventScroll: true });
  };

  const say = () => {
    const { selected } = KB.state;
    const names = {
      pe: KB.machine.nameOfPe,
      edge: KB.machine.nameOf,
      node: (id) => KB.machine.nodes.id[id],
      cube: (id) => `cube ${id}`,
    };
    KB.byId("said").textContent = selected ? `${names[selected.kind](selected.id)} selected` : "";
  };

  KB.details = {
    start() {
      // Without a selection nothing in the panel depends on time.
      KB.watch(["selected", "window", "bin", "mode", "engine", "theme"], (changed) => {
        if (KB.state.selected || changed.has("selected")) draw();
      });
      KB.watch(["selected"], say);
      draw();
    },
  };
})();
