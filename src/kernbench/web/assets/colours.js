/* Colours: a perceptually even heat ramp that colour-blind readers can order, and one hue for each kind of work. */
(() => {
  // Samples of "inferno". On a dark page it runs from dark to bright, on a light one the other way round, so that
  // more heat is always further from the page.
  const INFERNO = [
    "#160b39",
    "#420a68",
    "#6a176e",
    "#932667",
    "#bc3754",
    "#dd513a",
    "#f37819",
    "#fca50a",
    "#f6d746",
    "#fcffa4",
  ];
  const LIGHT = [
    "#f5ecd3",
    "#f8d062",
    "#fbab1c",
    "#f37819",
    "#dd513a",
    "#bc3754",
    "#932667",
    "#6a176e",
    "#420a68",
    "#1b0c41",
  ];
  const LEVELS = 48;

  const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

  const sample = (stops, share) => {
    const place = KB.clamp(share, 0, 1) * (stops.length - 1);
    const below = Math.min(Math.floor(place), stops.length - 2);
    const [a, b] = [channels(stops[below]), channels(stops[below + 1])];
    return `rgb(${a.map((each, i) => Math.round(each + (b[i] - each) * (place - below))).join(",")})`;
  };

  const ramp = (stops) => Array.from({ length: LEVELS + 1 }, (_, level) => sample(stops, level / LEVELS));
  const RAMPS = { light: ramp(LIGHT), dark: ramp(INFERNO.slice(1, -1)) };

  const NAMES = [
    "page",
    "surface",
    "raised",
    "ink",
    "muted",
    "faint",
    "line",
    "line-strong",
    "accent",
    "package",
    "die",
    "die-line",
    "part",
    "part-line",
    "wire",
    "bad",
  ];

  // Okabe and Ito's palette; the same engine has the same colour in every picture.
  const ENGINES = {
    cpu: "#8a8f96",
    scheduler: "#b4b8bd",
    "DMA in": "#009e73",
    fetch: "#e69f00",
    GEMM: "#d55e00",
    MATH: "#cc79a7",
    store: "#c9b400",
    "DMA out": "#0072b2",
    ipcq: "#56b4e9",
    other: "#7f7f7f",
    "any engine": "#0a6a8c",
  };
  // Of each part of a critical path its colour, and what happens meanwhile.
  const PARTS = {
    "host transfer": ["#5f6770", "the host's link carries a copy between the host and the machine"],
    "host program": ["#a9afb6", "the host's program is between two requests"],
    "control path down": ["#8d6fae", "a request goes from the host to the PEs"],
    "control path queue": ["#a58bc2", "a CPU of the control path waits for something else than another message"],
    "control path CPUs": ["#7a5a9c", "a CPU of the control path handles a message"],
    "device fill": ["#b79ad1", "memory is filled with a value"],
    "wait for the common start": ["#cfc3dd", "PEs wait until the order has come to all of the SIP"],
    "an earlier kernel on the PE": ["#ded6e8", "the PE still runs the kernel before"],
    "kernel launch": ["#7a5c99", "the PE starts the kernel"],
    "command issue": ["#a58bbf", "the PE's CPU issues commands"],
    "tile issue": ["#bda8d3", "the scheduler issues a tile"],
    translation: ["#2f8f78", "addresses are translated, the TLB lacked pages"],
    "DMA set-up": ["#4bb89a", "the DMA sets up this descriptor and those before it"],
    "request network": ["#8fd3f4", "overheads, wires and bytes on the way to the memory"],
    "memory access": ["#0072b2", "time before the first byte, or until a write is visible"],
    "memory queue": ["#4b93c9", "the memory works on other accesses"],
    "memory turnarounds": ["#9467bd", "buses turn between reads and writes"],
    "row misses": ["#b03a5b", "rows of banks are opened"],
    "memory refresh": ["#6f8fa6", "the memory refreshes its rows"],
    "memory service": ["#00548a", "the memory moves the bytes"],
    "response network": ["#56b4e9", "overheads, wires and bytes on the way back"],
    "network queue": ["#b5e0f7", "packets wait for links"],
    fetch: ["#e69f00", "operands go from TCM to an engine"],
    GEMM: ["#d55e00", "the matrix unit multiplies"],
    MATH: ["#cc79a7", "the vector unit computes"],
    store: ["#c9b400", "results go from an engine to TCM"],
    queues: ["#009e73", "the overheads of a message's queues"],
    "message network": ["#66c2a5", "a message is on its way to its slot"],
    doorbell: ["#3c8c6e", "the header of a message goes to the receiver"],
    credit: ["#a6dba0", "a released slot is reported to the sender"],
    "poll for a credit": ["#c7e9c0", "the credit is there, the sender has not looked yet"],
    barrier: ["#f0e442", "PEs wait for the last to come"],
    "issue/wait": ["#d3d3d3", "what no rule explains"],
    "not traced further": ["#e6d5d5", "the causes here lead nowhere earlier"],
    "raw traffic": ["#30b08f", "transfers that no kernel asked for"],
    "control path up": ["#6b4f8c", "completions go from the PEs to the host"],
  };
  const PHASES = {
    launch: "#d55e00",
    h2d: "#0072b2",
    d2h: "#56b4e9",
    init: "#009e73",
    map: "#8d6fae",
    unmap: "#bda8d3",
    dma: "#e69f00",
    queues: "#cc79a7",
    other: "#7f7f7f",
  };
  const SAYS_OF_PHASE = {
    launch: "kernels run",
    h2d: "copies to the machine",
    d2h: "copies to the host",
    init: "memory is filled",
    map: "pages are mapped",
    unmap: "pages are unmapped",
    dma: "transfers between places of the machine",
    queues: "queues are installed",
  };
  const MEMORIES = { HBM: "#0072b2", SRAM: "#009e73", fetch: "#e69f00" };
  const OTHER = "#9a9fa5";

  KB.colours = {
    LEVELS,
    theme: "light",
    page: {},
    /** Read the theme's colours for the canvases. */
    load(theme) {
      const style = getComputedStyle(document.documentElement);
      this.theme = theme;
      this.page = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    },
    /** The level of a share: 0 only for nothing at all, so that the least traffic can be seen. */
    level: (share) => (share <= 0 ? 0 : Math.max(1, Math.min(LEVELS, Math.round(share * LEVELS)))),
    heat(level) {
      return RAMPS[this.theme][level];
    },
    /** Whether words on a level have to be dark. */
    darkWordsOn(level) {
      return this.theme === "light" ? level < LEVELS * 0.45 : level > LEVELS * 0.6;
    },
    /** The colour of words that can be read on a colour. */
    wordsOn(colour) {
      const [r, g, b] = channels(colour);
      return 0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#1b1410" : "#ffffff";
    },
    engine: (name) => ENGINES[name] || OTHER,
    part: (name) => (PARTS[name] || [OTHER])[0],
    /** What happens while a path is in a part; undefined for one of no known name. */
    says: (name) => (PARTS[name] || [])[1],
    phase: (name) => PHASES[name] || OTHER,
    saysOfPhase: (name) => SAYS_OF_PHASE[name],
    memory: (name) => MEMORIES[name] || OTHER,
  };
})();
