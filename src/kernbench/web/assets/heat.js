/* What a run did to the machine, as colours over it: links by bandwidth used, PEs and their engines by time busy. */
(() => {
  /** Share of time that a row of a PE was busy; 0 for a PE that did nothing. */
  const busyShare = (pe, row) => {
    const active = KB.run.activeAt[pe];
    if (active < 0) return 0;
    const [window, bin] = [KB.current(), KB.shownBin()];
    return window.busyOf(active, row, bin) / window.ps(bin);
  };

  const engineRow = () => (KB.state.engine < 0 ? KB.run.rows.length : KB.state.engine);
  const peShare = (pe) => busyShare(pe, engineRow());

  /** Of a part of a PE, the rows of the PE's timeline that it works on with their shares; none for other parts. */
  const partShares = (node) => {
    const { machine, run } = KB;
    const pe = machine.peAt(machine.nodes.sip[node], machine.nodes.cube[node], machine.nodes.pe[node]);
    return (run.rows_of_kind[machine.kindOf(node)] || []).map((row) => [run.rows[row], busyShare(pe, row)]);
  };
  const largest = (shares) => (shares.length ? Math.max(...shares.map(([, share]) => share)) : null);

  /** Whether one is so near that the parts of PEs are coloured, not PEs. */
  const partsSeen = () => KB.camera.scale >= KB.scene.SEEN.engines;

  // The largest share of all that is coloured, which the scale may end at. Kept, since it takes a look at everything.
  const peaks = new Map();
  const peak = () => {
    const window = KB.current();
    const key = `${KB.state.window}/${KB.shownBin()}/${KB.state.engine}/${partsSeen()}`;
    if (!peaks.has(key)) {
      const bin = KB.shownBin();
      let most = 0;
      for (const edge of window.links) most = Math.max(most, window.utilisation(edge, bin));
      for (const pe of KB.run.active) {
        const shown = partsSeen() ? KB.machine.peNodes[pe].map((node) => largest(partShares(node))) : [peShare(pe)];
        most = Math.max(most, ...shown);
      }
      for (const node of KB.machine.hbm) most = Math.max(most, window.memoryShare(node, bin));
      peaks.set(key, most);
    }
    return peaks.get(key);
  };

  /** The share at the top of the scale. */
  const top = () => (KB.run && KB.state.scale === "max" ? peak() || 1 : 1);

  const levelOf = (share, most) => KB.colours.level(share / most);

  /** Links of a level are one path, so that there are as many strokes as colours, not as links. */
  const drawLinks = (context, edges, rank, most) => {
    const window = KB.current();
    const bin = KB.shownBin();
    const levels = Array.from({ length: KB.colours.LEVELS + 1 }, () => []);
    for (const edge of edges) {
      if (KB.machine.rank[edge] !== rank || window.slotOf[edge] < 0) continue;
      const level = levelOf(window.utilisation(edge, bin), most);
      if (level) levels[level].push(edge);
    }
    context.lineWidth = KB.scene.widthOf(rank, true);
    context.lineJoin = "round";
    context.lineCap = rank === 2 ? "butt" : "round";
    levels.forEach((found, level) => {
      if (!found.length) return;
      context.beginPath();
      for (const edge of found) KB.scene.path(context, KB.machine.lines[edge]);
      context.strokeStyle = KB.colours.heat(level);
      context.stroke();
    });
  };

  const wordsOn = (level) => {
    if (!level) return KB.colours.page.muted;
    return KB.colours.darkWordsOn(level) ? "#1b1410" : "#ffffff";
  };

  /** A part in the colour of its share, with the first of `words` that can be read in it. */
  const block = (context, rect, share, most, words, { weight = 500, largest = 14, least = 0, radius = 0.05 } = {}) => {
    const level = share === null ? 0 : levelOf(share, most);
    if (level) KB.scene.box(context, rect, KB.colours.heat(level), KB.colours.page["part-line"], radius, 0.6);
    words.some((each) => KB.scene.label(context, each, rect, wordsOn(level), largest, weight, least));
  };

  /** What is written on a part of a PE, the longest first: its name with its share, or with those of its rows. */
  const wordsOf = (node, shares) => {
    const name = KB.scene.nodeName(node);
    if (!shares.length) return [name];
    if (shares.length === 1) return [`${name}\n${KB.format.share(shares[0][1])}`, name];
    // "DMA", "in 12.5 %", "out 3.1 %"; rows that are not called after it need no name above them.
    const short = (share) => KB.format.share(share).replace(".0 %", " %");
    const lines = shares.map(([row, share]) => `${row.replace(`${name} `, "")} ${short(share)}`);
    const named = shares.some(([row]) => row.startsWith(`${name} `));
    return [(named ? [name, ...lines] : lines).join("\n"), name];
  };

  const drawPe = (context, pe, most, scale) => {
    const { SEEN } = KB.scene;
    const rect = KB.machine.pes[pe].slice(3, 7);
    if (scale < SEEN.engines) {
      const share = KB.run ? peShare(pe) : null;
      block(context, rect, share, most, scale >= SEEN.labels ? [`PE ${KB.machine.pes[pe][2]}`] : [], {
        weight: 600,
        radius: 0.06,
      });
      return;
    }
    for (const node of KB.machine.peNodes[pe]) {
      const shares = KB.run ? partShares(node) : [];
      const words = scale < SEEN.engineNames ? [] : wordsOf(node, shares);
      block(context, KB.scene.inset(KB.scene.rectOf(node), 0.03), largest(shares), most, words, {
        largest: 15,
        least: 6,
        radius: 0.02,
      });
    }
  };

  const drawDie = (context, die, most, scale) => {
    const { SEEN } = KB.scene;
    if (KB.run && scale < SEEN.pes) {
      // PEs would be specks: their mean colours the cube
      block(context, die.rect, die.pes.reduce((sum, pe) => sum + peShare(pe), 0) / die.pes.length, most, [], {
        radius: 0.25,
      });
    }
    if (KB.run && scale >= SEEN.wires) drawLinks(context, die.edges, 2, most);
    if (scale >= SEEN.pes) for (const pe of die.pes) drawPe(context, pe, most, scale);
    if (scale >= SEEN.memories) {
      for (const node of die.nodes) {
        if (KB.machine.kindOf(node) !== "hbm_ctrl") continue;
        const share = KB.run ? KB.current().memoryShare(node, KB.shownBin()) : null;
        const name = KB.scene.nodeName(node);
        const words = scale < SEEN.labels ? [] : !share ? [name] : [`${name}\n${KB.format.share(share)}`, name];
        block(context, KB.scene.rectOf(node), share, most, words);
      }
    }
  };

  const draw = (canvas) => {
    const { context, width, height } = KB.fitCanvas(canvas);
    context.clearRect(0, 0, width, height);
    const most = top();
    const { scale } = KB.camera;
    if (KB.run) {
      drawLinks(context, KB.outerEdges, 0, most);
      drawLinks(context, KB.outerEdges, 1, most);
    }
    for (const die of KB.scene.visibleDies()) drawDie(context, die, most, scale);
  };

  KB.heat = { draw, top, peShare, partShares, wordsOf };
})();
