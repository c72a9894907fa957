/* The tracks of the timeline: each has a name, a height, a way to draw itself, and knows what is at a place in it. */
(() => {
  const { format } = KB;
  const [RIGHT, ROW, LANE] = [10, 18, 9];
  const MOST_HEIGHT = 56; // of simultaneous work on one track
  const LEAST_LANE = 0.5;
  const MOST_COLOURS = 8; // of the parts of a path, those of most time, are in the legend; the pointer tells all

  /** What part of time is shown, and where on a canvas of some width. */
  const axis = {
    from: 0,
    to: 1,
    get span() {
      return this.to - this.from;
    },
    /** Where names end and time begins. */
    left: (width) => (width < 600 ? 88 : 128),
    /** How wide the part of time that is shown is. */
    room(width) {
      return width - this.left(width) - RIGHT;
    },
    x(ps, width) {
      return this.left(width) + ((ps - this.from) / this.span) * this.room(width);
    },
    ps(x, width) {
      return this.from + ((x - this.left(width)) / this.room(width)) * this.span;
    },
  };

  /** Facts that there are, with commas between. */
  const joinFacts = (...facts) => facts.filter(Boolean).join(", ");

  const bar = (context, width, start, end, y, height, colour) => {
    const left = axis.left(width);
    const [a, b] = [Math.max(axis.x(start, width), left), Math.min(axis.x(end, width), width - RIGHT)];
    if (b < left || a > width - RIGHT) return;
    context.fillStyle = colour;
    context.fillRect(a, y, Math.max(b - a, 0.6), height);
  };

  const requestTrack = () => {
    const { run } = KB;
    const window = KB.current();
    const lanes = [];
    const inside = run.requests.filter(
      ([, , , , start, end]) => start < window.end_ps && (end < 0 || end > window.start_ps),
    );
    const items = inside.map(([phase, name, sip, nbytes, start, end, error]) => {
      const over = end < 0 ? run.end_ps : end;
      let lane = lanes.findIndex((free) => free <= start);
      if (lane < 0) lane = lanes.length;
      lanes[lane] = over;
      return { phase, name, sip, nbytes, start, end: over, lane, error };
    });
    const lane = Math.min(LANE, MOST_HEIGHT / Math.max(1, lanes.length)); // of hundreds of copies at once, a shade
    const height = Math.max(ROW, lanes.length * lane + 4);
    return {
      name: "requests",
      height,
      legend: [...new Set(items.map(({ phase }) => phase))].map((phase) => [
        KB.colours.phase(phase),
        phase,
        KB.colours.saysOfPhase(phase),
      ]),
      draw(context, width, y) {
        for (const item of items)
          bar(
            context,
            width,
            item.start,
            item.end,
            y + 2 + item.lane * lane,
            Math.max(lane - 1, lane * 0.7),
            KB.colours.phase(item.phase),
          );
      },
      at(ps, dy) {
        const number = Math.floor((dy - 2) / lane);
        const item = items.find((each) => each.lane === number && each.start <= ps && ps <= each.end);
        return (
          item && [
            `${item.phase} ${item.name}`.trim(),
            KB.colours.saysOfPhase(item.phase),
            joinFacts(format.time(item.end - item.start), item.nbytes && format.size(item.nbytes), item.error),
          ]
        );
      },
    };
  };

  /** Say that what comes before the run is no part of its path. */
  const drawLoading = (context, width, y, end) => {
    const [left, right] = [axis.left(width), axis.x(end, width)];
    const says = ["loading, not counted", "loading"].find((each) => context.measureText(each).width + 12 < right - left);
    if (!says) return;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillStyle = KB.colours.page.muted;
    context.fillText(says, (left + right) / 2, y + ROW / 2);
  };

  const pathTrack = () => {
    const { run } = KB;
    const path = run.paths[KB.state.window];
    const { steps } = path;
    return {
      name: "critical path",
      height: ROW,
      legend: [...path.spent]
        .sort((a, b) => b[1] - a[1])
        .slice(0, MOST_COLOURS)
        .map(([part]) => [KB.colours.part(run.parts[part]), run.parts[part], KB.colours.says(run.parts[part])]),
      draw(context, width, y) {
        if (path.start_ps > KB.current().start_ps) drawLoading(context, width, y, path.start_ps);
        // Steps narrower than a pixel share one: what took most of it is drawn.
        let [pixel, spent] = [-1, new Map()];
        const put = () => {
          const best = [...spent].sort((a, b) => b[1] - a[1])[0];
          if (best) {
            context.fillStyle = KB.colours.part(run.parts[best[0]]);
            context.fillRect(pixel, y + 3, 1, ROW - 6);
          }
        };
        for (const [part, start, end] of steps) {
          if (end < axis.from || start > axis.to) continue;
          const [a, b] = [axis.x(start, width), axis.x(end, width)];
          if (b - a >= 1.5) bar(context, width, start, end, y + 3, ROW - 6, KB.colours.part(run.parts[part]));
          else if (Math.floor(a) === pixel) spent.set(part, (spent.get(part) || 0) + end - start);
          else {
            put();
            [pixel, spent] = [Math.floor(a), new Map([[part, end - start]])];
          }
        }
        put();
      },
      at(ps) {
        const step = steps.find(([, start, end]) => start <= ps && ps < end);
        return (
          step && [
            run.parts[step[0]],
            KB.colours.says(run.parts[step[0]]),
            joinFacts(
              format.time(step[2] - step[1]),
              step[3] >= 0 && KB.machine.nameOfPe(step[3]),
              step[4] && `${path.unit || "line"} ${step[4]}`,
            ),
          ]
        );
      },
      pick(ps) {
        const step = steps.find(([, start, end]) => start <= ps && ps < end);
        if (step && step[3] >= 0) KB.select("pe", step[3]);
      },
    };
  };

  /** A row of one PE, span by span; spans narrower than a pixel become a bar as high as they fill their pixel. */
  const engineTrack = (active, row) => {
    const { run } = KB;
    const spans = run.row(active, row);
    const colour = KB.colours.engine(run.rows[row]);
    const lane = spans.laneCount === 1 ? ROW - 3 : KB.clamp(MOST_HEIGHT / spans.laneCount, LEAST_LANE, LANE);
    const tall = lane > 3 ? lane - 1 : lane;
    const laneTop = (number, y) => y + 2 + number * lane;
    /** The first span that can reach beyond `ps`: none lasts longer than the longest. */
    const firstReaching = (ps) => Math.max(0, KB.lastNotAbove(spans.starts, ps - spans.longest));

    const drawNarrow = (context, fill, width, y) => {
      context.fillStyle = colour;
      fill.forEach((share, at) => {
        if (!share) return;
        const size = Math.max(1, Math.min(1, share) * tall);
        context.fillRect(at % width, laneTop(Math.floor(at / width), y) + tall - size, 1, size);
      });
    };

    return {
      name: run.rows[row],
      height: Math.max(ROW, spans.laneCount * lane + 3),
      draw(context, width, y) {
        const perPixel = axis.span / axis.room(width);
        const pixels = Math.ceil(width) + 1;
        const fill = new Float32Array(pixels * spans.laneCount);
        for (let at = firstReaching(axis.from); at < spans.count && spans.starts[at] < axis.to; at++) {
          const [start, end, number] = [spans.starts[at], spans.ends[at], spans.lanes[at]];
          if (end < axis.from) continue;
          if (end - start >= perPixel * 1.5) {
            const gap = end - start >= perPixel * 4 ? 0.6 * perPixel : 0; // so that neighbours can be told apart
            bar(context, width, start, end - gap, laneTop(number, y), tall, colour);
          } else {
            const pixel = Math.floor(axis.x(start, width));
            if (pixel >= axis.left(width)) fill[number * pixels + pixel] += (end - start) / perPixel;
          }
        }
        drawNarrow(context, fill, pixels, y);
      },
      at(ps, dy) {
        const number = KB.clamp(Math.floor((dy - 2) / lane), 0, spans.laneCount - 1);
        for (let at = firstReaching(ps); at < spans.count && spans.starts[at] <= ps; at++) {
          if (spans.lanes[at] !== number || spans.ends[at] < ps) continue;
          const [name, kernel, line] = run.timeline.labels[spans.labels[at]];
          const took = format.time(spans.ends[at] - spans.starts[at]);
          const since = `from ${KB.since(spans.starts[at], 1000)}`;
          return [name, joinFacts(`${took} ${since}`, kernel, line && `line ${line}`)];
        }
        return null;
      },
    };
  };

  /** All PEs, a line each: how busy the chosen engine was, bin by bin. */
  const matrixTrack = () => {
    const { run, machine } = KB;
    const line = run.active.length > 96 ? 3 : run.active.length > 40 ? 5 : 9;
    const row = KB.state.engine < 0 ? run.rows.length : KB.state.engine;
    const peOf = (dy) => run.active[KB.clamp(Math.floor((dy - ROW) / line), 0, run.active.length - 1)];
    return {
      name: `PEs: ${run.engines[row]}`,
      height: ROW + run.active.length * line + 4,
      legend: [0, 0.25, 0.5, 1].map((share) => [
        share ? KB.colours.heat(KB.colours.level(share)) : "transparent",
        `${format.share(share * KB.heat.top()).replace(".0 %", " %")}`,
        `of the time ${run.engines[row]} was busy`,
      ]),
      draw(context, width, y) {
        const window = KB.current();
        const most = KB.heat.top();
        for (let bin = 0; bin < window.bins; bin++) {
          const [start, end] = [window.binStart(bin), window.binStart(bin + 1)];
          if (end < axis.from || start > axis.to) continue;
          // Whole pixels: between two anti-aliased edges the page would shine through.
          const [a, b] = [Math.max(axis.x(start, width), axis.left(width)), Math.min(axis.x(end, width), width - RIGHT)].map(
            Math.round,
          );
          for (let active = 0; active < run.active.length; active++) {
            const level = KB.colours.level(window.busyOf(active, row, bin) / (end - start) / most);
            if (!level) continue;
            context.fillStyle = KB.colours.heat(level);
            context.fillRect(a, y + ROW + active * line, Math.max(b - a, 1), line > 4 ? line - 1 : line);
          }
        }
        context.fillStyle = KB.colours.page.muted;
        context.textAlign = "right";
        let last = -Infinity;
        run.active.forEach((pe, active) => {
          const [sip, cube, number] = machine.pes[pe];
          if (number !== 0 && active !== 0) return;
          const at = y + ROW + active * line;
          if (at - last < 13) return;
          last = at;
          context.fillText(`SIP ${sip} cube ${cube}`, axis.left(width) - 8, at + Math.max(line, 11) / 2);
        });
      },
      at(ps, dy) {
        const window = KB.current();
        const bin = window.binAt(ps);
        const pe = peOf(dy);
        const share = window.busyOf(run.activeAt[pe], row, bin) / window.binPs(bin);
        return [machine.nameOfPe(pe), `${run.engines[row]} busy ${format.share(share)}`];
      },
      pick(ps, dy) {
        KB.select("pe", peOf(dy));
      },
    };
  };

  KB.tracks = {
    axis,
    RIGHT,
    ROW,
    requests: requestTrack,
    path: pathTrack,
    engine: engineTrack,
    pes: matrixTrack,
  };
})();
