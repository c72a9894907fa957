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
  const PARTS = {
    "host transfer": "#5f6770",
    "host program": "#a9afb6",
    "control path down": "#8d6fae",
    "control path queue": "#a58bc2",
    "control path CPUs": "#7a5a9c",
    "device fill": "#b79ad1",
    "wait for the common start": "#cfc3dd",
    "an earlier kernel on the PE": "#ded6e8",
    "kernel launch": "#7a5c99",
    "command issue": "#a58bbf",
    "tile issue": "#bda8d3",
    translation: "#2f8f78",
    "DMA set-up": "#4bb89a",
    "request network": "#8fd3f4",
    "memory access": "#0072b2",
    "memory queue": "#4b93c9",
    "memory turnarounds": "#9467bd",
    "row misses": "#b03a5b",
    "memory refresh": "#6f8fa6",
    "memory service": "#00548a",
    "response network": "#56b4e9",
    "network queue": "#b5e0f7",
    fetch: "#e69f00",
    GEMM: "#d55e00",
    MATH: "#cc79a7",
    store: "#c9b400",
    queues: "#009e73",
    "message network": "#66c2a5",
    doorbell: "#3c8c6e",
    credit: "#a6dba0",
    "poll for a credit": "#c7e9c0",
    "other engines": "#7f7f7f",
    barrier: "#f0e442",
    "issue/wait": "#d3d3d3",
    "raw traffic": "#30b08f",
    "control path up": "#6b4f8c",
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
    engine: (name) => ENGINES[name] || OTHER,
    part: (name) => PARTS[name] || OTHER,
    phase: (name) => PHASES[name] || OTHER,
  };
})();
