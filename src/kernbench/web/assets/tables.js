/* Tables that can be sorted and searched; their figures are of the window that is chosen. */
(() => {
  const { el, format } = KB;
  const FIRST = 200;

  /** A table of `rows()`; a column is {name, of(row), show(value, row), text, share}. */
  const make = (panel, { what, columns, rows, sort, pick, selected, watch, note }) => {
    let [column, descending] = sort;
    let words = "";
    let all = false;
    const body = el("tbody", {});
    const search = el("input", {
      type: "search",
      placeholder: `Find ${what} (/)`,
      "aria-label": `Find ${what}`,
      oninput: () => {
        words = search.value.toLowerCase();
        fill();
      },
    });
    const count = el("span", {});
    const about = el("span", {});
    const more = el("button", {
      type: "button",
      text: "Show all",
      onclick: () => {
        all = true;
        fill();
      },
    });
    const heads = columns.map((each, at) =>
      el(
        "th",
        { scope: "col", class: each.text ? "text" : null },
        el("button", {
          type: "button",
          text: each.name,
          title: each.title,
          onclick: () => {
            descending = column === at ? !descending : !each.text;
            column = at;
            fill();
          },
        }),
      ),
    );

    const cell = (each, row) => {
      const value = each.of(row);
      if (!each.share)
        return el("td", { class: each.text ? "text" : null, text: each.show ? each.show(value, row) : value });
      return el(
        "td",
        { class: "heat" },
        el(
          "span",
          { class: "bar-cell", title: format.share(value) },
          el("i", { style: `width:${(KB.clamp(value, 0, 1) * 100).toFixed(1)}%` }),
        ),
      );
    };

    const line = (row) => {
      const made = el(
        "tr",
        {
          tabindex: "-1",
          "aria-selected": selected(row) ? "true" : null,
          onclick: () => pick(row, false),
          ondblclick: () => pick(row, true),
        },
        ...columns.map((each) => cell(each, row)),
      );
      made.onkeydown = (event) => {
        const to = { ArrowDown: made.nextElementSibling, ArrowUp: made.previousElementSibling }[event.key];
        if (to) {
          made.tabIndex = -1;
          to.tabIndex = 0;
          to.focus();
        } else if (event.key === "Enter") pick(row, true);
        else if (event.key === " ") pick(row, false);
        else return;
        event.preventDefault();
        event.stopPropagation();
      };
      return made;
    };

    const fill = () => {
      const { of } = columns[column];
      const found = rows().filter(
        (row) => !words || columns.some((each) => each.text && String(each.of(row)).toLowerCase().includes(words)),
      );
      const way = descending ? -1 : 1;
      found.sort((a, b) => {
        const [x, y] = [of(a), of(b)];
        return x < y ? -way : x > y ? way : 0;
      });
      const shown = all ? found : found.slice(0, FIRST);
      body.replaceChildren(...shown.map(line));
      if (body.firstElementChild) body.firstElementChild.tabIndex = 0;
      heads.forEach((head, at) => {
        if (at === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      count.textContent =
        shown.length < found.length
          ? `${format.count(shown.length)} of ${format.count(found.length)}`
          : format.count(found.length);
      about.textContent = note ? note() : "";
      more.hidden = shown.length === found.length;
    };

    panel.append(
      el("div", { class: "controls" }, search, count, more, about),
      el("table", { class: "rows" }, el("thead", {}, el("tr", {}, ...heads)), body),
    );
    KB.watch(watch, () => {
      if (!panel.hidden) fill();
    });
    panel.refresh = fill;
  };

  const ofWindow = () => (KB.run ? `over the ${KB.current().label}, ${format.time(KB.current().span)}` : "");

  const links = (panel) => {
    const { machine, run } = KB;
    const name = { name: "link", text: true, of: (edge) => machine.nameOf(edge) };
    const fixed = [
      { name: "class", text: true, of: (edge) => machine.classOf(edge) },
      { name: "bandwidth", of: (edge) => machine.edges.bw_gbs[edge], show: format.rate },
    ];
    const still = [
      { name: "length", of: (edge) => machine.edges.length_mm[edge], show: format.mm },
      { name: "hop ns", of: (edge) => machine.edges.hop_ns[edge], show: (ns) => format.figure(ns, 3) },
    ];
    const used = (edge) => KB.current().utilisation(edge, -1);
    const moving = [
      { name: "bytes", of: (edge) => KB.current().bytes(edge, -1), show: format.size },
      {
        name: "rate",
        title: "Average over the window",
        of: (edge) => used(edge) * machine.edges.bw_gbs[edge],
        show: format.rate,
      },
      { name: "used", title: "Of its bandwidth, average over the window", of: used, show: format.share },
      { name: "", of: used, share: true },
      { name: "most used", title: "In the busiest bin of the window", of: mostUsed, show: format.share },
      {
        name: "most in FIFO",
        title: "In the whole run, loading included",
        of: (edge) => mostInFifo(run, edge),
        show: format.size,
      },
    ];
    const rows = () => (run ? [...KB.current().links] : machine.edges.src.map((_, edge) => edge));
    make(panel, {
      what: "a link",
      columns: run ? [name, ...fixed, ...moving] : [name, ...fixed, ...still],
      rows,
      sort: [run ? 5 : 0, Boolean(run)],
      pick: (edge, zoom) => {
        KB.select("edge", edge);
        if (zoom) KB.map.zoomTo({ kind: "edge", id: edge });
      },
      selected: (edge) => KB.isSelected("edge", edge),
      watch: ["window", "selected"],
      note: ofWindow,
    });
  };

  const mostInFifo = (run, edge) => (run.usage.has(edge) ? run.usage.get(edge).fifo : 0);

  const most = new Map();
  const mostUsed = (edge) => {
    const window = KB.current();
    const key = window.number * 1e7 + edge;
    if (!most.has(key)) {
      let best = 0;
      for (let bin = 0; bin < window.bins; bin++) best = Math.max(best, window.utilisation(edge, bin));
      most.set(key, best);
    }
    return most.get(key);
  };

  const pes = (panel) => {
    const { machine, run } = KB;
    const any = run.rows.length;
    const busy = (row) => (pe) => KB.current().busyOf(run.activeAt[pe], row, -1);
    const used = run.rows
      .map((name, row) => ({ name, row }))
      .filter(({ row }) => run.active.some((_, active) => run.spanCount(active, row)));
    const columns = [
      { name: "PE", text: true, of: (pe) => machine.nameOfPe(pe) },
      { name: "any engine ns", title: "Time in which at least one engine was busy", of: busy(any), show: format.ns },
      { name: "of the time", of: (pe) => busy(any)(pe) / KB.current().span, show: format.share },
      { name: "", of: (pe) => busy(any)(pe) / KB.current().span, share: true },
      ...used.map(({ name, row }) => ({
        name: `${name === "cpu" ? "kernel" : name} ns`,
        of: busy(row),
        show: format.ns,
      })),
    ];
    make(panel, {
      what: "a PE",
      columns,
      rows: () => [...run.active],
      sort: [1, true],
      pick: (pe, zoom) => {
        KB.select("pe", pe);
        if (zoom) KB.map.zoomTo({ kind: "pe", id: pe });
      },
      selected: (pe) => KB.isSelected("pe", pe),
      watch: ["window", "selected"],
      note: ofWindow,
    });
  };

  const requests = (panel) => {
    const { run } = KB;
    const rows = run.requests.map(([phase, name, sip, nbytes, start, end, error], id) => ({
      id,
      phase,
      name,
      sip,
      nbytes,
      start,
      end,
      error,
    }));
    const length = (row) => (row.end < 0 ? run.end_ps : row.end) - row.start;
    // What the end of the program left is freed when its time is over.
    const ended = (row) => {
      if (row.end < 0) return "in flight";
      if (row.start >= run.end_ps) return `${row.error || "ok"}, after the run`;
      return (row.error || "ok") + (row.start < run.begin_ps ? ", while loading" : "");
    };
    const columns = [
      { name: "no.", of: (row) => row.id },
      { name: "what", text: true, of: (row) => row.phase },
      { name: "name", text: true, of: (row) => row.name || "–" },
      { name: "SIP", of: (row) => row.sip, show: (sip) => (sip < 0 ? "–" : sip) },
      { name: "bytes", of: (row) => row.nbytes, show: (nbytes) => (nbytes ? format.size(nbytes) : "–") },
      {
        name: "submitted ns",
        title: "From the start of the run, or of the launch that is shown",
        of: (row) => row.start - KB.zeroPs(),
        show: format.ns,
      },
      { name: "took ns", of: length, show: format.ns },
      {
        name: "rate",
        of: (row) => (length(row) > 0 ? (row.nbytes * 1000) / length(row) : 0),
        show: (rate) => (rate ? format.rate(rate) : "–"),
      },
      { name: "end", text: true, of: ended },
    ];
    make(panel, {
      what: "a request",
      columns,
      rows: () => [...rows],
      sort: [0, false],
      pick: (row) => {
        KB.goTo(row.start);
      },
      selected: () => false,
      watch: ["window"],
      note: () => `times in ns: ${KB.zeroSays()}`,
    });
  };

  const figures = (panel) => {
    const rows = KB.run.figures.map(([name, value, about]) => ({ name, value, about }));
    make(panel, {
      what: "a figure",
      columns: [
        { name: "figure", text: true, of: (row) => row.name },
        {
          name: "value",
          of: (row) => row.value,
          show: (value) => (typeof value === "number" ? format.figure(value, Number.isInteger(value) ? 0 : 3) : value),
        },
        { name: "description", text: true, of: (row) => row.about },
      ],
      rows: () => [...rows],
      sort: [0, false],
      pick: () => {},
      selected: () => false,
      watch: ["tab"],
      note: () => "of the complete run",
    });
  };

  const TABS = [
    { id: "timeline", name: "Timeline", make: (panel) => KB.timeline.make(panel), run: true },
    { id: "path", name: "Critical path", make: (panel) => KB.path.make(panel), run: true },
    { id: "roofline", name: "Roofline", make: (panel) => KB.roofline.make(panel), run: true },
    { id: "links", name: "Links", make: links, run: false },
    { id: "pes", name: "PEs", make: pes, run: true },
    { id: "requests", name: "Requests", make: requests, run: true },
    { id: "figures", name: "Figures", make: figures, run: true },
  ];

  const show = () => {
    if (!TABS.some((tab) => tab.id === KB.state.tab)) KB.state.tab = "timeline";
    for (const tab of TABS) {
      const chosen = tab.id === KB.state.tab;
      const panel = KB.byId(`panel-${tab.id}`);
      const button = KB.byId(`tab-${tab.id}`);
      button.setAttribute("aria-selected", chosen);
      button.tabIndex = chosen ? 0 : -1;
      panel.hidden = !chosen;
      if (chosen && !panel.made) {
        panel.made = true;
        if (tab.run && !KB.run) panel.append(el("p", { class: "empty", text: "No run in this page." }));
        else tab.make(panel);
      }
      if (chosen && panel.refresh) panel.refresh();
    }
  };

  KB.tables = {
    ids: TABS.map((tab) => tab.id),
    start() {
      if (!KB.run && KB.state.tab === "timeline") KB.state.tab = "links";
      KB.byId("tabs").append(
        ...TABS.map((tab) =>
          el("button", {
            type: "button",
            role: "tab",
            id: `tab-${tab.id}`,
            "aria-controls": `panel-${tab.id}`,
            text: tab.name,
            onclick: () => KB.set({ tab: tab.id }),
          }),
        ),
      );
      KB.byId("panels").append(
        ...TABS.map((tab) =>
          el("div", {
            class: "panel",
            role: "tabpanel",
            id: `panel-${tab.id}`,
            "aria-labelledby": `tab-${tab.id}`,
            hidden: true,
          }),
        ),
      );
      KB.byId("tabs").onkeydown = (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!by) return;
        const at = KB.tables.ids.indexOf(KB.state.tab);
        KB.set({ tab: KB.tables.ids[(at + by + TABS.length) % TABS.length] });
        KB.flush();
        KB.byId(`tab-${KB.state.tab}`).focus();
        event.preventDefault();
        event.stopPropagation();
      };
      KB.watch(["tab"], show);
      show();
    },
  };
})();
