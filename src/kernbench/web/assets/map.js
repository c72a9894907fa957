/* The map: three layers, of which only changed ones are redrawn, and the pointer. */
(() => {
  const WHEEL = 0.0016;
  const NEAR_PX = 5;
  const PAN_PX = 60;
  const { format } = KB;

  // ---- What is under the pointer: a small part, a link, a PE, a cube

  const contains = ([x, y, w, h], px, py) => px >= x && px <= x + w && py >= y && py <= y + h;

  const distance = (line, x, y) => {
    let least = Infinity;
    for (let at = 0; at + 3 < line.length; at += 2) {
      const [ax, ay, bx, by] = [line[at], line[at + 1], line[at + 2], line[at + 3]];
      const length = (bx - ax) ** 2 + (by - ay) ** 2;
      const way = length ? KB.clamp(((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length, 0, 1) : 0;
      least = Math.min(least, Math.hypot(x - ax - way * (bx - ax), y - ay - way * (by - ay)));
    }
    return least;
  };

  const nearestEdge = (edges, x, y, reach) => {
    const { box, lines } = KB.machine;
    let [best, least] = [-1, reach];
    for (const edge of edges) {
      const at = edge * 4;
      if (x < box[at] - reach || y < box[at + 1] - reach || x > box[at + 2] + reach || y > box[at + 3] + reach)
        continue;
      const far = distance(lines[edge], x, y);
      if (far < least) [best, least] = [edge, far];
    }
    return best;
  };

  const under = (px, py) => {
    const { machine, camera, scene } = KB;
    const [x, y] = camera.toBoard(px, py);
    const { SEEN } = scene;
    const reach = NEAR_PX / camera.scale;
    const onBoard = scene.boardNodes.find((node) => contains(scene.rectOf(node), x, y));
    if (onBoard !== undefined) return { kind: "node", id: onBoard };
    const die = scene.visibleDies().find((each) => contains(each.rect, x, y));
    if (die) {
      const pe =
        camera.scale >= SEEN.pes ? die.pes.find((each) => contains(machine.pes[each].slice(3, 7), x, y)) : undefined;
      if (pe !== undefined) return { kind: "pe", id: pe };
      const shown = (node) => camera.scale >= (machine.kindOf(node) === "hbm_ctrl" ? SEEN.memories : SEEN.parts);
      const node = die.nodes.find((each) => shown(each) && contains(scene.rectOf(each), x, y));
      if (node !== undefined) return { kind: "node", id: node };
      const edge = camera.scale >= SEEN.wires ? nearestEdge(die.edges, x, y, reach) : -1;
      if (edge >= 0) return { kind: "edge", id: edge };
    }
    const edge = nearestEdge(KB.outerEdges, x, y, reach);
    if (edge >= 0) return { kind: "edge", id: edge };
    return die ? { kind: "cube", id: die.id } : null;
  };

  const rectOfThing = ({ kind, id }) => {
    const { machine } = KB;
    if (kind === "pe") return machine.pes[id].slice(3, 7);
    if (kind === "cube") return KB.dieById.get(id).rect;
    if (kind === "node") return KB.scene.rectOf(id);
    const [west, north, east, south] = machine.box.slice(id * 4, id * 4 + 4);
    return [west - 0.3, north - 0.3, east - west + 0.6, south - north + 0.6];
  };

  /** What encloses some rectangles, with a margin in mm. */
  const around = (rects, margin) => {
    const [left, top] = [Math.min(...rects.map(([x]) => x)), Math.min(...rects.map(([, y]) => y))];
    const [right, bottom] = [
      Math.max(...rects.map(([x, , w]) => x + w)),
      Math.max(...rects.map(([, y, , h]) => y + h)),
    ];
    return [left - margin, top - margin, right - left + 2 * margin, bottom - top + 2 * margin];
  };

  /** The PEs and slices that worked if they are of one cube, else the cubes; everything if that is half of them. */
  const workedRect = () => {
    const { machine, run } = KB;
    const pes = run ? run.active : [];
    const dies = [...new Set(pes.map((pe) => machine.pes[pe].slice(0, 2).join(".")))].map((id) => KB.dieById.get(id));
    if (!dies.length || dies.length > KB.dieById.size / 2) return machine.bounds;
    const rects = dies.map((die) => die.rect);
    if (dies.length > 1) return around(rects, 1);
    const slices = machine.hbm.filter((node) => dies[0].nodes.includes(node) && run.window(0).memoryShare(node, -1));
    return around([...pes.map((pe) => machine.pes[pe].slice(3, 7)), ...slices.map(KB.scene.rectOf)], 0.9);
  };

  // ---- Marks: what is selected, what the pointer is on, where the critical path is

  const outline = (context, thing, colour, width) => {
    context.strokeStyle = colour;
    if (thing.kind === "edge") {
      context.beginPath();
      KB.scene.path(context, KB.machine.lines[thing.id]);
      context.lineWidth = KB.scene.widthOf(KB.machine.rank[thing.id], true) + width;
      context.globalAlpha = 0.45;
      context.stroke();
      context.globalAlpha = 1;
      return;
    }
    const pad = (width / 2 + 0.5) / KB.camera.scale;
    const [x, y, w, h] = rectOfThing(thing);
    KB.scene.box(context, [x - pad, y - pad, w + 2 * pad, h + 2 * pad], null, colour, 0.08, width);
  };

  const drawMarks = (canvas) => {
    const { context, width, height } = KB.fitCanvas(canvas);
    context.clearRect(0, 0, width, height);
    const { selected, hover } = KB.state;
    const step = KB.criticalStep();
    if (step && step.pe >= 0) {
      context.setLineDash([4, 3]);
      outline(context, { kind: "pe", id: step.pe }, KB.colours.page.ink, 1.6);
      context.setLineDash([]);
    }
    if (hover) outline(context, hover, KB.colours.page.muted, 1.5);
    if (selected) outline(context, selected, KB.colours.page.accent, 3);
  };

  /** The step of the critical path of this window at the moment shown; null for an average. */
  KB.criticalStep = () => {
    if (!KB.run || KB.state.mode !== "moment") return null;
    const window = KB.current();
    const path = KB.run.paths[KB.state.window];
    const middle = (window.binStart(KB.state.bin) + window.binStart(KB.state.bin + 1)) / 2;
    const found = path.steps.find((step) => step[1] <= middle && middle < step[2]);
    return found ? { part: KB.run.parts[found[0]], pe: found[3], line: found[4] } : null;
  };

  // ---- Words

  const when = () => (KB.state.mode === "average" ? "average" : "at this time");

  const about = (thing) => {
    const { machine, run } = KB;
    const lines = [];
    if (thing.kind === "pe") {
      lines.push(machine.nameOfPe(thing.id));
      if (run) {
        const names = [...run.rows, "any engine"];
        const row = KB.state.engine < 0 ? run.rows.length : KB.state.engine;
        lines.push(
          run.activeAt[thing.id] < 0
            ? "did nothing in this run"
            : `${names[row]} busy ${format.share(KB.heat.peShare(thing.id))} (${when()})`,
        );
      }
    } else if (thing.kind === "edge") {
      lines.push(
        machine.nameOf(thing.id),
        `${machine.classOf(thing.id)} · ${format.rate(machine.edges.bw_gbs[thing.id])}`,
      );
      if (run) {
        const [window, bin] = [KB.current(), KB.shownBin()];
        const rate = (window.bytes(thing.id, bin) * 1000) / window.ps(bin);
        lines.push(`${format.rate(rate)}, ${format.share(window.utilisation(thing.id, bin))} used (${when()})`);
      }
    } else if (thing.kind === "node") {
      lines.push(machine.nodes.id[thing.id], machine.kindOf(thing.id));
      if (run && machine.kindOf(thing.id) === "hbm_ctrl") {
        lines.push(`busy ${format.share(KB.current().memoryShare(thing.id, KB.shownBin()))} (${when()})`);
      }
    } else {
      const die = KB.dieById.get(thing.id);
      lines.push(machine.placeName(die.sip, die.cube, -1), `${die.pes.length} PEs`);
    }
    return lines;
  };

  const drawCrumbs = () => {
    const { selected } = KB.state;
    const { machine } = KB;
    const at =
      selected &&
      (selected.kind === "pe"
        ? machine.pes[selected.id].slice(0, 3)
        : selected.kind === "cube"
          ? [KB.dieById.get(selected.id).sip, KB.dieById.get(selected.id).cube, -1]
          : selected.kind === "node"
            ? [machine.nodes.sip[selected.id], machine.nodes.cube[selected.id], -1]
            : [
                machine.nodes.sip[machine.edges.src[selected.id]],
                machine.nodes.cube[machine.edges.src[selected.id]],
                -1,
              ]);
    const [sip, cube, pe] = at || [-1, -1, -1];
    const places = [["Machine", machine.bounds, null]];
    if (sip >= 0) places.push([`SIP ${sip}`, machine.sips[sip].package, null]);
    if (cube >= 0) places.push([`cube ${cube}`, machine.sips[sip].cubes[cube], ["cube", `${sip}.${cube}`]]);
    if (pe >= 0) places.push([`PE ${pe}`, machine.pes[selected.id].slice(3, 7), ["pe", selected.id]]);
    KB.byId("crumbs").replaceChildren(
      ...places.map(([text, rect, what], index) =>
        KB.el("button", {
          type: "button",
          text,
          "aria-current": index === places.length - 1 ? "true" : null,
          onclick: () => {
            if (what) KB.select(...what);
            KB.camera.fit(rect, what && what[0] === "pe" ? 0.35 : 0.08);
          },
        }),
      ),
    );
  };

  const drawScaleBar = () => {
    const bar = KB.byId("scalebar");
    const aim = 90 / KB.camera.scale;
    const power = 10 ** Math.floor(Math.log10(aim));
    const length = [5, 2, 1].map((step) => step * power).find((each) => each <= aim);
    bar.querySelector("i").style.width = `${length * KB.camera.scale}px`;
    bar.querySelector("span").textContent = length >= 1 ? `${length} mm` : `${format.count(length * 1000)} µm`;
  };

  const drawRamp = () => {
    const { context, width, height } = KB.fitCanvas(KB.byId("ramp"));
    const { LEVELS } = KB.colours;
    context.clearRect(0, 0, width, height);
    for (let level = 1; level <= LEVELS; level++) {
      context.fillStyle = KB.colours.heat(level);
      context.fillRect(((level - 1) * width) / LEVELS, 0, width / LEVELS + 0.5, height);
    }
    KB.byId("ramp-top").textContent = format.share(KB.heat.top()).replace(".0 %", " %");
  };

  // ---- The pointer and the keyboard

  const zoomTo = (thing) => {
    if (!thing) return;
    KB.camera.fit(rectOfThing(thing), { cube: 0.12, pe: 0.35, node: 0.8, edge: 0.5 }[thing.kind]);
  };

  const listen = (map) => {
    const pointers = new Map();
    let moved = 0;
    const place = (event) => {
      const { left, top } = map.getBoundingClientRect();
      return [event.clientX - left, event.clientY - top];
    };
    map.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        KB.camera.zoomAt(Math.exp(-event.deltaY * WHEEL * (event.deltaMode ? 30 : 1)), ...place(event));
      },
      { passive: false },
    );
    map.addEventListener("pointerdown", (event) => {
      map.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, place(event));
      if (pointers.size === 1) moved = 0;
    });
    map.addEventListener("pointermove", (event) => {
      const [px, py] = place(event);
      const before = pointers.get(event.pointerId);
      if (!before) {
        const thing = under(px, py);
        const same = thing && KB.state.hover && thing.kind === KB.state.hover.kind && thing.id === KB.state.hover.id;
        if (!same) KB.set({ hover: thing });
        KB.tip(thing && about(thing), event.clientX, event.clientY);
        return;
      }
      const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      pointers.set(event.pointerId, [px, py]);
      moved += Math.hypot(px - before[0], py - before[1]);
      KB.tip(null);
      if (others.length) {
        // two fingers: zoom about the middle between them
        const [ox, oy] = others[0];
        const factor = Math.hypot(px - ox, py - oy) / Math.max(1, Math.hypot(before[0] - ox, before[1] - oy));
        KB.camera.zoomAt(factor, (px + ox) / 2, (py + oy) / 2);
      } else if (moved > 3) {
        map.classList.add("dragging");
        KB.camera.pan(px - before[0], py - before[1]);
      }
    });
    const release = (event) => {
      if (pointers.delete(event.pointerId) && !pointers.size) {
        map.classList.remove("dragging");
        if (event.type === "pointerup" && moved <= 3) {
          const thing = under(...place(event));
          KB.select(thing && thing.kind, thing && thing.id);
        }
      }
    };
    map.addEventListener("pointerup", release);
    map.addEventListener("pointercancel", release);
    map.addEventListener("pointerleave", () => {
      KB.set({ hover: null });
      KB.tip(null);
    });
    map.addEventListener("dblclick", (event) => zoomTo(under(...place(event))));
    map.addEventListener("keydown", (event) => {
      const ways = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
      if (ways[event.key]) KB.camera.pan(...ways[event.key].map((each) => each * PAN_PX));
      else if (event.key === "Enter") zoomTo(KB.state.selected);
      else return;
      event.preventDefault();
    });
  };

  KB.map = {
    zoomTo,
    workedRect,
    start() {
      const map = KB.byId("map");
      const layers = ["base", "heat", "parts", "marks"].map((name) => KB.byId(`layer-${name}`));
      listen(map);
      KB.byId("zoom-in").onclick = () => KB.camera.zoomAt(1.6);
      KB.byId("zoom-out").onclick = () => KB.camera.zoomAt(1 / 1.6);
      KB.byId("zoom-fit").onclick = () => KB.camera.fit(KB.machine.bounds);
      KB.byId("zoom-work").onclick = () => KB.camera.fit(workedRect());
      KB.camera.resize(map.clientWidth, map.clientHeight);
      if (KB.state.camera) KB.camera.put(KB.state.camera);
      else KB.camera.keep(workedRect());
      const heatNames = ["window", "bin", "mode", "engine", "scale"];
      KB.watch(["camera", "theme", "size"], () => {
        KB.scene.draw(layers[0]);
        KB.scene.drawParts(layers[2]);
      });
      KB.watch(["camera", "theme", "size", ...heatNames], () => KB.heat.draw(layers[1]));
      KB.watch(["camera", "theme", "size", "selected", "hover", "bin", "mode", "window"], () => drawMarks(layers[3]));
      KB.watch(["selected"], drawCrumbs);
      KB.watch(["camera", "size"], drawScaleBar);
      KB.watch(["ready", "theme", "camera", ...heatNames], () => {
        if (KB.run) drawRamp();
      });
      new ResizeObserver(() => {
        KB.camera.resize(map.clientWidth, map.clientHeight);
        if (KB.camera.kept) KB.camera.keep(KB.camera.kept);
        KB.set({ size: `${map.clientWidth}×${map.clientHeight}` });
      }).observe(map);
      drawCrumbs();
    },
  };
})();
