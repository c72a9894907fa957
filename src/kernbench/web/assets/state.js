/* What the page shows: one object, changed by `KB.set`, which tells those who asked once before the next frame.
   The part that makes a link worth sending is kept in the address: #w=1&t=37&v=x,y,scale&s=pe:0.3.5&tab=links */
(() => {
  const BINS_A_SECOND = 24;

  KB.state = {
    window: 0,
    bin: 0,
    mode: "average",
    engine: -1,
    scale: "full",
    selected: null,
    hover: null,
    tab: "timeline",
    theme: "light",
    playing: false,
    camera: null,
  };

  const listeners = [];
  let changed = new Set();
  let waiting = false;

  /** Call `listener(changed names)` whenever one of `names` has changed. */
  KB.watch = (names, listener) => listeners.push({ names, listener });

  KB.set = (patch) => {
    for (const [name, value] of Object.entries(patch)) {
      if (KB.state[name] === value) continue;
      KB.state[name] = value;
      changed.add(name);
    }
    if (changed.size && !waiting) {
      waiting = true;
      requestAnimationFrame(KB.flush);
    }
  };

  KB.flush = () => {
    waiting = false;
    const now = changed;
    changed = new Set();
    for (const { names, listener } of listeners) if (names.some((name) => now.has(name))) listener(now);
  };

  /** The window that is shown, and the bin whose figures are: -1 for all of it. */
  KB.current = () => (KB.run ? KB.run.window(KB.state.window) : null);
  KB.shownBin = () => (KB.state.mode === "average" ? -1 : KB.state.bin);

  // Times are shown from the start of the launch, or of the run: what its program loaded before is below 0.
  KB.zeroPs = () => (KB.state.window ? KB.current().start_ps : KB.run.begin_ps);
  KB.since = (ps, step) => KB.format.moment(ps - KB.zeroPs(), step);
  KB.zero = () => (KB.state.window ? `the start of ${KB.current().label}` : "the start of the run");
  KB.zeroSays = () => {
    const { begin_ps: begin } = KB.run;
    const before = KB.zeroPs() - begin;
    if (before) return `0 is ${KB.zero()}, ${KB.format.time(before)} into the run`;
    return `0 is ${KB.zero()}${begin ? `, after ${KB.format.time(begin)} of loading` : ""}`;
  };

  KB.select = (kind, id) => KB.set({ selected: kind === null ? null : { kind, id } });
  KB.isSelected = (kind, id) =>
    KB.state.selected !== null && KB.state.selected.kind === kind && KB.state.selected.id === id;

  /** Show another window, all of it. */
  KB.chooseWindow = (window) => KB.set({ window, bin: 0, mode: "average" });

  /** Show the moment `ps`. */
  KB.goTo = (ps) => {
    const window = KB.current();
    if (window) KB.set({ bin: window.binAt(ps), mode: "moment" });
  };

  KB.step = (bins) => {
    const window = KB.current();
    if (window) KB.set({ bin: KB.clamp(KB.state.bin + bins, 0, window.bins - 1), mode: "moment" });
  };

  let timer = 0;
  KB.play = (wanted) => {
    const window = KB.current();
    if (!window) return;
    clearInterval(timer);
    if (wanted) {
      if (KB.state.bin >= window.bins - 1 || KB.state.mode === "average") KB.set({ bin: 0 });
      timer = setInterval(() => {
        if (KB.state.bin >= KB.current().bins - 1) KB.play(false);
        else KB.step(1);
      }, 1000 / BINS_A_SECOND);
    }
    KB.set({ playing: wanted, ...(wanted ? { mode: "moment" } : {}) });
  };

  const nameOfSelection = ({ kind, id }) => {
    const { machine } = KB;
    if (kind === "pe") return `pe:${machine.pes[id].slice(0, 3).join(".")}`;
    if (kind === "cube") return `cube:${id}`;
    if (kind === "node") return `node:${machine.nodes.id[id]}`;
    return `link:${machine.nodes.id[machine.edges.src[id]]}>${machine.nodes.id[machine.edges.dst[id]]}`;
  };

  const selectionOfName = (text) => {
    const { machine } = KB;
    const [kind, rest] = [text.slice(0, text.indexOf(":")), text.slice(text.indexOf(":") + 1)];
    if (kind === "pe") {
      const id = machine.pes.findIndex((pe) => pe.slice(0, 3).join(".") === rest);
      return id < 0 ? null : { kind, id };
    }
    if (kind === "cube") return KB.dieById.has(rest) ? { kind, id: rest } : null;
    if (kind === "node") return machine.nodeById.has(rest) ? { kind, id: machine.nodeById.get(rest) } : null;
    const [src, dst] = rest.split(">").map((id) => machine.nodeById.get(id));
    const id = machine.edges.src.findIndex((each, at) => each === src && machine.edges.dst[at] === dst);
    return id < 0 ? null : { kind: "edge", id };
  };

  KB.writeAddress = () => {
    const { state } = KB;
    const words = [];
    if (KB.run) {
      words.push(`w=${state.window}`);
      if (state.mode === "moment") words.push(`t=${state.bin}`);
    }
    if (state.camera) words.push(`v=${state.camera.map((each) => each.toFixed(2)).join(",")}`);
    if (state.selected) words.push(`s=${nameOfSelection(state.selected)}`);
    words.push(`tab=${state.tab}`);
    history.replaceState(null, "", `#${words.join("&")}`);
  };

  /** The number from 0 to below `end` that a text is; null when it is none. */
  const numberIn = (text, end) => (text !== null && /^\d+$/.test(text) && Number(text) < end ? Number(text) : null);

  /** What the address asks for, as far as this machine and this run have it. */
  KB.readAddress = () => {
    // It takes every text: an escape that means nothing stays as it is.
    const given = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
    const patch = {};
    if (KB.run) {
      const window = numberIn(given.get("w"), KB.run.windows.length);
      if (window !== null) patch.window = window;
      const shown = KB.run.windows[patch.window === undefined ? KB.state.window : patch.window];
      const bin = numberIn(given.get("t"), shown.bins);
      if (bin !== null) Object.assign(patch, { bin, mode: "moment" });
    }
    const camera = (given.get("v") || "").split(",").map(Number);
    if (camera.length === 3 && camera.every(Number.isFinite) && camera[2] > 0) patch.camera = camera;
    if (given.has("s")) patch.selected = selectionOfName(given.get("s"));
    if (KB.tables.ids.includes(given.get("tab"))) patch.tab = given.get("tab");
    return patch;
  };
})();
