/* The critical path: what the time was spent on, what bounds it, and which lines of the kernel it goes through. */
(() => {
  const { el, format } = KB;
  const WORDS = ["source", "does", "waiting", "for", "of"]; // heads of columns of words

  const table = (title, heads, rows) =>
    el("section", {}, el("h3", { text: title }), KB.meters(heads, rows, WORDS));

  /** The parts of a path side by side, with their names where these fit; returns where each ends, in pixels. */
  const drawStrip = (canvas, path) => {
    const { context, width, height } = KB.fitCanvas(canvas);
    const all = path.end_ps - path.start_ps;
    context.font = `600 11px ${KB.scene.FONT}`;
    context.textBaseline = "middle";
    let x = 0;
    for (const [part, ps] of path.spent) {
      const name = KB.run.parts[part];
      const length = (ps / all) * width;
      context.fillStyle = KB.colours.part(name);
      context.fillRect(x, 0, Math.max(length - (length > 3 ? 1 : 0), 0.4), height);
      if (context.measureText(name).width < length - 10) {
        context.fillStyle = KB.colours.wordsOn(KB.colours.part(name));
        context.fillText(name, x + 5, height / 2);
      }
      x += length;
    }
  };

  /** What the pointer is on in the strip. */
  const partAt = (canvas, path, event) => {
    const { left, width } = canvas.getBoundingClientRect();
    const all = path.end_ps - path.start_ps;
    const place = ((event.clientX - left) / width) * all;
    let reached = 0;
    for (const [part, ps] of path.spent) {
      reached += ps;
      if (place > reached) continue;
      const name = KB.run.parts[part];
      return [name, `${format.time(ps)}, ${format.share(ps / all)} of the path`, KB.colours.says(name)];
    }
    return null;
  };

  const spent = (path) => {
    const all = path.end_ps - path.start_ps;
    const rows = [...path.spent]
      .sort((a, b) => b[1] - a[1])
      .map(([part, ps]) => {
        const name = KB.run.parts[part];
        return KB.meterRow(name, [format.ns(ps), format.share(ps / all)], ps / all, {
          colour: KB.colours.part(name),
          says: KB.colours.says(name),
        });
      });
    return table(`Spent on · ${format.time(all)}`, ["part", "ns", "share", ""], rows);
  };

  const amount = (amount, unit) =>
    unit === "bytes" || unit === "B" ? format.size(amount) : `${format.count(amount)} ${unit}`;

  // What the sentence of latency speaks of.
  const resources = (path) => {
    const all = path.end_ps - path.start_ps;
    const rows = path.resources.map(([name, ps, queued]) =>
      KB.meterRow(name, [format.ns(ps), format.share(ps / all)], ps / all, {
        says: queued ? `of it in queues: ${format.ns(queued)} ns` : "",
      }),
    );
    return table("On the path, by resource", ["resource", "ns", "share", ""], rows);
  };

  const bounds = (path) => {
    const all = path.end_ps - path.start_ps;
    const figures = (ps) => [format.ns(ps), format.share(ps / all)];
    const rows = path.bounds.map(([resource, where, work, unit, , ps]) =>
      KB.meterRow(resource, figures(ps), ps / all, { says: `${where}: ${amount(work, unit)}` }),
    );
    const beyond = path.differences.map(([what, ps]) =>
      KB.meterRow(what, figures(ps), ps / all, { says: KB.colours.says(what) }),
    );
    const found = [resources(path), table("Busy at least, by resource", ["resource", "ns", "of the time", ""], rows)];
    if (beyond.length)
      found.push(table("Beyond the largest of them", ["meanwhile the path was in", "ns", "share", ""], beyond));
    if (path.slices.length) found.push(slices(path));
    return el("div", {}, ...found);
  };

  // Shares of the time in which the buses of slices with banks were busy; the rest they had nothing to do.
  const slices = (path) => {
    const all = path.end_ps - path.start_ps;
    const rows = path.slices.map(([where, spent, hits]) => {
      const idle = Math.max(0, all - spent.reduce((sum, ps) => sum + ps, 0));
      return el(
        "tr",
        {},
        el("th", { scope: "row", text: where }),
        ...[...spent, idle].map((ps) => el("td", { text: format.share(ps / all) })),
        el("td", { text: format.share(hits) }),
      );
    });
    const some = path.n_slices > rows.length ? `, the busiest ${rows.length} of ${path.n_slices}` : "";
    const heads = ["slice", "data", "rows", "turns", "refresh", "groups", "idle", "hits"];
    return table(`Time of HBM slices${some}`, heads, rows);
  };

  const kernel = ([pe, launch, line]) =>
    `${KB.machine.nameOfPe(pe)} (${launch || "a running kernel"}${line && ` ${line}`})`;

  // None of this is a part of the path: what they waited for is.
  const waits = (path) => {
    const rows = path.waits.map(([waiting, what, cause, count, ps]) =>
      el(
        "tr",
        {},
        ...[kernel(waiting), what, kernel(cause)].map((text) => el("td", { class: "words", text })),
        el("td", { text: format.count(count) }),
        el("td", { text: format.ns(ps) }),
      ),
    );
    return table(`${units(path)} on the path that waited for others`, ["waiting", "for", "of", "times", "waited ns"], rows);
  };

  const units = (path) => (path.unit === "step" ? "Steps" : "Lines");

  const lines = (path) => {
    if (!path.lines) return null;
    const all = path.end_ps - path.start_ps;
    const rows = path.lines.map(([line, source, ps]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row", text: line }),
        el("td", { class: "source", text: source, title: source }),
        el("td", { text: format.share(ps / all) }),
        KB.meter(ps / all),
      ),
    );
    const found = [table(`${units(path)} of ${path.program}`, [path.unit, path.unit === "step" ? "does" : "source", "on the path", ""], rows)];
    if (path.waits.length) found.push(waits(path));
    return el("div", {}, ...found);
  };

  const draw = (panel) => {
    const { run, state } = KB;
    const path = run.paths[state.window];
    const choice = el(
      "select",
      { "aria-label": "Path of", onchange: (event) => KB.chooseWindow(Number(event.target.value)) },
      ...run.windows.map((each, at) => el("option", { value: at, text: each.label, selected: at === state.window })),
    );
    // That of the run has no step of what was loaded before.
    if (run.begin_ps) choice.options[0].text = "run, after loading";
    const choosing = panel.contains(document.activeElement) && document.activeElement.matches("select");
    const strip = el("canvas", { role: "img", "aria-label": "The parts of the critical path side by side" });
    KB.tipOn(strip, (event) => partAt(strip, path, event));
    panel.replaceChildren(
      el(
        "div",
        { class: "controls" },
        el("label", { class: "field" }, "Critical path of ", choice),
        el("span", { text: `${format.count(path.steps.length)} steps from submission to completion, without a gap` }),
      ),
      el(
        "div",
        { class: "path" },
        el("div", { class: "strip" }, strip),
        spent(path),
        bounds(path),
        lines(path) || el("span", {}),
      ),
    );
    if (choosing) choice.focus();
    requestAnimationFrame(() => drawStrip(strip, path));
  };

  KB.path = {
    make(panel) {
      KB.watch(["window", "theme", "tab"], () => {
        if (!panel.hidden) draw(panel);
      });
      draw(panel);
    },
  };
})();
