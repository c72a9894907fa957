/* Puts the page together: theme, height of the tables, keys, news of the server. */
(() => {
  const { byId, el } = KB;
  const [LEAST_DOCK, MOST_DOCK] = [120, 640];

  // ---- Theme: the system's, until one is chosen

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const readTheme = () => {
    try {
      return localStorage.getItem("kernbench-theme");
    } catch {
      return null;
    }
  };
  const setTheme = (theme, keep) => {
    document.documentElement.dataset.theme = theme;
    KB.colours.load(theme);
    KB.set({ theme });
    try {
      if (keep) localStorage.setItem("kernbench-theme", theme);
    } catch {
      /* a page from a file may have no storage */
    }
  };
  const startTheme = () => {
    setTheme(readTheme() || (dark.matches ? "dark" : "light"), false);
    dark.addEventListener("change", () => {
      if (!readTheme()) setTheme(dark.matches ? "dark" : "light", false);
    });
    byId("theme").onclick = () => setTheme(KB.state.theme === "dark" ? "light" : "dark", true);
  };

  // ---- Height of the dock

  const startSplitter = () => {
    const splitter = byId("splitter");
    const set = (height) => {
      const most = Math.min(MOST_DOCK, window.innerHeight - 260);
      const chosen = Math.round(KB.clamp(height, LEAST_DOCK, Math.max(most, LEAST_DOCK)));
      document.body.style.setProperty("--dock", `${chosen}px`);
      splitter.setAttribute("aria-valuenow", chosen);
      KB.set({ dock: chosen });
    };
    const height = () => document.querySelector(".dock").clientHeight;
    splitter.addEventListener("pointerdown", (event) => splitter.setPointerCapture(event.pointerId));
    splitter.addEventListener("pointermove", (event) => {
      if (splitter.hasPointerCapture(event.pointerId)) set(window.innerHeight - event.clientY - 4);
    });
    splitter.addEventListener("keydown", (event) => {
      const by = { ArrowUp: 24, ArrowDown: -24 }[event.key];
      if (by) {
        set(height() + by);
        event.preventDefault();
        event.stopPropagation();
      }
    });
  };

  // ---- Keys

  const stepPe = (by) => {
    const { machine, run, state } = KB;
    const among = run && run.active.length ? run.active : machine.pes.map((_, pe) => pe);
    const at = state.selected && state.selected.kind === "pe" ? among.indexOf(state.selected.id) : by > 0 ? -1 : 0;
    KB.select("pe", among[(at + by + among.length) % among.length]);
  };

  const find = () => {
    const box = document.querySelector('.panel:not([hidden]) input[type="search"]');
    if (box) box.focus();
  };

  const KEYS = [
    [" ", "space", "play or pause", () => KB.play(!KB.state.playing)],
    [",", ",", "a step back in time", () => KB.step(-1)],
    [".", ".", "a step on in time", () => KB.step(1)],
    ["a", "a", "colours: average over the window", () => KB.set({ mode: "average" })],
    ["m", "m", "colours: at the time of the slider", () => KB.set({ mode: "moment" })],
    [
      "w",
      "w",
      "next window of time: run, launches",
      () => {
        if (KB.run) KB.chooseWindow((KB.state.window + 1) % KB.run.windows.length);
      },
    ],
    ["f", "f", "show the whole machine", () => KB.camera.fit(KB.machine.bounds)],
    ["g", "g", "go to what worked", () => KB.camera.fit(KB.map.workedRect())],
    ["+", "+", "zoom in", () => KB.camera.zoomAt(1.4)],
    ["-", "−", "zoom out", () => KB.camera.zoomAt(1 / 1.4)],
    ["]", "]", "next PE", () => stepPe(1)],
    ["[", "[", "PE before", () => stepPe(-1)],
    ["z", "z", "zoom to what is selected", () => KB.map.zoomTo(KB.state.selected)],
    ["Escape", "Esc", "deselect", () => KB.select(null)],
    ...[1, 2, 3, 4, 5, 6].map((number) => [
      `${number}`,
      `${number}`,
      null,
      () => KB.set({ tab: KB.tables.ids[number - 1] }),
    ]),
    ["/", "/", "find in the table", find],
    ["t", "t", "light or dark", () => byId("theme").click()],
    ["?", "?", "this list", () => byId("help").showModal()],
  ];
  const ALSO = [
    ["1 … 6", "timeline, critical path, roofline, links, PEs, requests"],
    ["arrows", "on the map: pan; on the slider: a step in time; in a table: rows; on the timeline: move"],
    ["Enter", "on the map or in a table: zoom to it"],
  ];

  const startKeys = () => {
    const listed = [...KEYS.filter(([, , what]) => what).map(([, shown, what]) => [shown, what]), ...ALSO];
    byId("keys").append(
      ...listed.flatMap(([shown, what]) => [el("dt", {}, el("kbd", { text: shown })), el("dd", { text: what })]),
    );
    byId("help-open").onclick = () => byId("help").showModal();
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
      const { target } = event;
      if (target.matches('input[type="search"], select, textarea')) return;
      if (event.key === " " && target.matches("button")) return; // a button's own key
      const key = KEYS.find(([name]) => name === (event.key === "=" ? "+" : event.key));
      if (!key) return;
      key[3]();
      event.preventDefault();
    });
  };

  // ---- A served page asks its server whether there is a newer one; a page from a file has no version and does not ask

  const PAUSE_MS = 1000;

  const ask = async (version) => {
    try {
      const news = await (await fetch("version", { cache: "no-store" })).json();
      if (news.version !== version)
        location.reload(); // the address keeps what is shown
      else KB.notice(news.message || KB.problem);
    } catch {
      KB.notice("The server of this page does not answer; what is shown is the last run.");
    }
  };

  const startNews = () => {
    const version = document.querySelector('meta[name="kernbench-version"]').content;
    if (version) setInterval(() => ask(version), PAUSE_MS);
  };

  // ---- Begin

  const start = async () => {
    await KB.loadData(byId("data").textContent);
    KB.scene.build();
    Object.assign(KB.state, KB.readAddress());
    startTheme();
    for (const part of ["head", "map", "details", "timebar", "tables"]) KB[part].start();
    startSplitter();
    startKeys();
    startNews();
    KB.watch(["camera", "selected", "window", "bin", "mode", "tab"], KB.writeAddress);
    KB.set({ ready: true });
    document.documentElement.dataset.ready = "true";
  };

  start().catch((error) => {
    document.documentElement.dataset.ready = "failed";
    KB.notice(`This page could not be shown: ${error.message}`);
    throw error;
  });
})();
