/* Timelines: requests, the critical path, and either all PEs as a picture or the engines of the selected PE. */
(() => {
  const { el, format } = KB;
  const { axis, ROW } = KB.tracks;
  const AXIS = 22;
  const LEAST_PS = 100;

  let canvas;
  let cursor; // over the canvas: the moment shown, which moves more often than what is below it
  let note;
  let zero; // what the times begin at
  let legend;
  let tracks = [];

  const show = (from, to) => {
    const window = KB.current();
    const length = KB.clamp(to - from, Math.min(LEAST_PS, window.span), window.span);
    const start = KB.clamp(from, window.start_ps, window.end_ps - length);
    [axis.from, axis.to] = [start, start + length];
    draw();
  };

  const makeTracks = () => {
    const { run, state } = KB;
    const found = [KB.tracks.requests(), KB.tracks.path()];
    const active = state.selected && state.selected.kind === "pe" ? run.activeAt[state.selected.id] : -1;
    if (active >= 0) {
      run.rows.forEach((_, row) => {
        if (run.spanCount(active, row)) found.push(KB.tracks.engine(active, row));
      });
      note.textContent = `${KB.machine.nameOfPe(state.selected.id)} · Esc: all PEs`;
    } else if (run.active.length) {
      found.push(KB.tracks.pes());
      note.textContent = "all PEs · click one for its engines";
    } else {
      note.textContent = "no PE did anything";
    }
    tracks = found;
    zero.textContent = KB.zeroSays();
  };

  const drawLegend = () => {
    const told = tracks.filter((track) => track.legend && track.legend.length);
    legend.replaceChildren(...told.map((track) => KB.legend(track.name, track.legend)));
  };

  // ---- Drawing

  /** Mark where the run begins, with what was loaded before in a shade. */
  const drawBegin = (context, width, height) => {
    const { page } = KB.colours;
    const [left, begin] = [axis.left(width), axis.x(KB.run.begin_ps, width)];
    if (KB.state.window || begin <= left) return;
    context.fillStyle = page.line;
    context.globalAlpha = 0.35;
    context.fillRect(left, AXIS, Math.min(begin, width) - left, height - AXIS);
    context.globalAlpha = 1;
    context.fillStyle = page.ink;
    context.fillRect(begin, AXIS - 4, 1.5, height - AXIS + 4);
  };

  const drawAxis = (context, width, height) => {
    const { page } = KB.colours;
    const start = KB.zeroPs();
    const aim = axis.span / Math.max(2, axis.room(width) / 110);
    const power = 10 ** Math.floor(Math.log10(aim));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= aim);
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let tick = Math.ceil((axis.from - start) / step) * step; start + tick <= axis.to; tick += step) {
      const x = axis.x(start + tick, width);
      context.fillStyle = page.line;
      context.fillRect(x, AXIS, 1, height - AXIS);
      context.fillStyle = page.muted;
      if (x < width - 40) context.fillText(tick === 0 ? "0" : format.moment(tick, step), x, AXIS / 2);
    }
    drawBegin(context, width, height);
  };

  const draw = () => {
    if (!canvas.isConnected || !canvas.offsetParent) return;
    const needed = AXIS + tracks.reduce((sum, track) => sum + track.height + 3, 0) + 8;
    canvas.style.height = `${Math.max(needed, canvas.parentElement.clientHeight)}px`;
    const { context, width, height } = KB.fitCanvas(canvas);
    const { page } = KB.colours;
    context.clearRect(0, 0, width, height);
    context.font = `11px ${KB.scene.FONT}`;
    drawAxis(context, width, height);
    let y = AXIS;
    for (const track of tracks) {
      track.top = y;
      track.draw(context, width, y);
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillStyle = page.ink;
      context.fillText(track.name, 14, y + ROW / 2);
      y += track.height + 3;
      context.fillStyle = page.line;
      context.fillRect(0, y - 2, width, 1);
    }
    drawCursor();
  };

  const drawCursor = () => {
    cursor.style.height = canvas.style.height;
    const { context, width, height } = KB.fitCanvas(cursor);
    const { page } = KB.colours;
    context.clearRect(0, 0, width, height);
    if (KB.state.mode === "moment") {
      const window = KB.current();
      const [a, b] = [axis.x(window.binStart(KB.state.bin), width), axis.x(window.binStart(KB.state.bin + 1), width)];
      const left = axis.left(width);
      if (b >= left) {
        context.fillStyle = page.ink;
        context.globalAlpha = 0.12;
        context.fillRect(Math.max(a, left), AXIS, Math.max(1, b - Math.max(a, left)), height);
        context.globalAlpha = 0.8;
        context.fillRect(Math.max(a, left), AXIS, 1, height);
        context.globalAlpha = 1;
      }
    }
  };

  // ---- The pointer and the keyboard

  const place = (event) => {
    const { left, top, width } = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    const track = tracks.find((each) => y >= each.top && y < each.top + each.height);
    return { x, y, width, ps: axis.ps(x, width), track, dy: track ? y - track.top : 0 };
  };

  const linesAt = (event) => {
    const { ps, track, dy, x, width } = place(event);
    const found = track && x >= axis.left(width) ? track.at(ps, dy) : null;
    return found && [...found, `at ${KB.since(ps, axis.span / 500)} from ${KB.zero()}`];
  };

  const zoom = (factor, ps) => show(ps - (ps - axis.from) * factor, ps + (axis.to - ps) * factor);

  const listen = () => {
    let drag = null;
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          const by = ((event.deltaX || event.deltaY) / canvas.clientWidth) * axis.span;
          show(axis.from + by, axis.to + by);
        } else if (
          event.ctrlKey ||
          event.altKey ||
          canvas.parentElement.scrollHeight <= canvas.parentElement.clientHeight + 1
        ) {
          zoom(Math.exp(event.deltaY * 0.0016), place(event).ps);
        } else return; // a plain wheel scrolls through the rows where there are more than can be seen
        event.preventDefault();
      },
      { passive: false },
    );
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      drag = { x: event.clientX, from: axis.from, to: axis.to, moved: false };
    });
    KB.tipOn(canvas, (event) => (drag && drag.moved ? null : linesAt(event)));
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return;
      const by = ((drag.x - event.clientX) / axis.room(canvas.clientWidth)) * (drag.to - drag.from);
      drag.moved = drag.moved || Math.abs(drag.x - event.clientX) > 3;
      if (drag.moved) show(drag.from + by, drag.to + by);
    });
    canvas.addEventListener("pointerup", (event) => {
      const still = drag && !drag.moved;
      drag = null;
      if (!still) return;
      const { x, ps, track, dy, width } = place(event);
      if (x >= axis.left(width)) KB.goTo(ps);
      if (track && track.pick) track.pick(ps, dy);
    });
    canvas.addEventListener("keydown", (event) => {
      const middle = (axis.from + axis.to) / 2;
      const by = axis.span / 8;
      const keys = {
        "+": () => zoom(0.7, middle),
        "=": () => zoom(0.7, middle),
        "-": () => zoom(1.4, middle),
        ArrowLeft: () => show(axis.from - by, axis.to - by),
        ArrowRight: () => show(axis.from + by, axis.to + by),
      };
      if (!keys[event.key]) return;
      keys[event.key]();
      event.preventDefault();
      event.stopPropagation();
    });
  };

  const wholeWindow = () => {
    const window = KB.current();
    [axis.from, axis.to] = [window.start_ps, window.end_ps];
  };

  KB.timeline = {
    make(panel) {
      canvas = el("canvas", {
        tabindex: "0",
        role: "img",
        "aria-label": "Timeline. Plus and minus zoom, arrow keys move, a click shows that moment.",
      });
      cursor = el("canvas", { "aria-hidden": "true" });
      [note, zero, legend] = [el("span", {}), el("b", { class: "zero" }), el("div", { class: "legends" })];
      panel.append(
        el(
          "div",
          { class: "timeline" },
          el(
            "div",
            { class: "controls" },
            zero,
            note,
            el("button", {
              type: "button",
              text: "Whole window",
              onclick: () => {
                wholeWindow();
                draw();
              },
            }),
            el("span", { text: "drag: move · Ctrl + wheel, + −: zoom · click: show that moment" }),
          ),
          legend,
          el("div", { class: "scroll" }, canvas, cursor),
        ),
      );
      listen();
      wholeWindow();
      makeTracks();
      drawLegend();
      KB.watch(["selected", "engine", "window", "theme", "scale", "bin", "mode", "tab", "size", "dock"], (changed) => {
        if (changed.has("window")) wholeWindow();
        if (["selected", "engine", "window"].some((name) => changed.has(name))) makeTracks();
        if (["selected", "engine", "window", "theme", "scale", "mode"].some((name) => changed.has(name))) drawLegend();
        if ([...changed].every((name) => name === "bin" || name === "mode") && KB.state.scale === "full") drawCursor();
        else draw();
      });
      new ResizeObserver(draw).observe(canvas.parentElement);
    },
  };
})();
