/* From the text in the page to typed columns. What is long and may not be looked at is decoded when it is. */
(() => {
  const inflate = async (text) => {
    const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  };

  /** Reads LEB128 numbers one after another. Not with bit operators: times in ps need more than 32 bits. */
  class Reader {
    constructor(bytes) {
      this.bytes = bytes;
      this.at = 0;
    }

    next() {
      let [value, scale] = [0, 1];
      for (;;) {
        const byte = this.bytes[this.at++];
        value += (byte & 127) * scale;
        if (byte < 128) return value;
        scale *= 128;
      }
    }

    /** A row of `length` counts that was stored as (zeros skipped, value) pairs. */
    sparse(into, offset) {
      let place = offset - 1;
      for (let left = this.next(); left > 0; left--) {
        place += 1 + this.next();
        into[place] = this.next();
      }
    }
  }

  /** The way of a link, `lane` mm to the right of its direction, so that both directions can be seen. */
  const offsetWay = (way, against, lane) => {
    const points = [];
    for (let at = 0; at < way.length; at += 2) {
      const last = points[points.length - 1];
      if (!last || last[0] !== way[at] || last[1] !== way[at + 1]) points.push([way[at], way[at + 1]]);
    }
    if (against) points.reverse();
    const normals = points.slice(1).map((to, at) => {
      const [dx, dy] = [to[0] - points[at][0], to[1] - points[at][1]];
      const length = Math.hypot(dx, dy);
      return [-dy / length, dx / length];
    });
    const out = new Float32Array(points.length * 2);
    points.forEach(([x, y], at) => {
      const [a, b] = [normals[Math.max(at - 1, 0)], normals[Math.min(at, normals.length - 1)]];
      const widen = 1 + a[0] * b[0] + a[1] * b[1]; // of a mitred corner; nearly 0 where the way turns back
      const reach = widen > 0.2 ? lane / widen : lane / 2;
      out[2 * at] = x + (a[0] + b[0]) * reach;
      out[2 * at + 1] = y + (a[1] + b[1]) * reach;
    });
    return out;
  };

  // Links that are distinct from afar, and the distance of their two directions in mm.
  const BOARD = new Set(["host_to_switch", "switch_to_sip", "sip_to_sip"]);
  const DIES = new Set(["cube_to_cube", "io_to_cube"]);
  const laneOf = (name) => (BOARD.has(name) ? 0.42 : DIES.has(name) ? 0.24 : name === "io_internal" ? 0.16 : 0.075);
  /** 0: on the board, 1: between dies, 2: within a die. */
  const rankOf = (name) => (BOARD.has(name) ? 0 : DIES.has(name) || name === "io_internal" ? 1 : 2);

  const placeName = (sip, cube, pe) =>
    [sip >= 0 ? `SIP ${sip}` : "", cube >= 0 ? `cube ${cube}` : "", pe >= 0 ? `PE ${pe}` : ""]
      .filter(Boolean)
      .join(" · ");

  const makeMachine = (given) => {
    const { nodes, edges } = given;
    const count = edges.src.length;
    const machine = {
      ...given,
      kindOf: (node) => given.kinds[nodes.kind[node]],
      classOf: (edge) => edges.class.names[edges.class.at[edge]],
      nameOf: (edge) => `${nodes.id[edges.src[edge]]} → ${nodes.id[edges.dst[edge]]}`,
      placeName,
      lines: [],
      rank: new Uint8Array(count),
      box: new Float32Array(count * 4),
      edgesOf: nodes.id.map(() => []),
      pesOf: new Map(),
      nodeById: new Map(nodes.id.map((id, at) => [id, at])),
      hbm: [],
      peNodes: given.pes.map(() => []),
    };
    for (let edge = 0; edge < count; edge++) {
      const name = machine.classOf(edge);
      const line = offsetWay(edges.ways[edges.way[edge]], edges.against[edge], laneOf(name));
      machine.lines.push(line);
      machine.rank[edge] = rankOf(name);
      const [xs, ys] = [line.filter((_, at) => at % 2 === 0), line.filter((_, at) => at % 2)];
      machine.box.set([Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)], edge * 4);
      machine.edgesOf[edges.src[edge]].push(edge);
      machine.edgesOf[edges.dst[edge]].push(edge);
    }
    const peAt = new Map(given.pes.map(([sip, cube, pe], at) => [`${sip}.${cube}.${pe}`, at]));
    machine.peAt = (sip, cube, pe) => peAt.get(`${sip}.${cube}.${pe}`);
    nodes.id.forEach((_, node) => {
      if (nodes.pe[node] >= 0)
        machine.peNodes[machine.peAt(nodes.sip[node], nodes.cube[node], nodes.pe[node])].push(node);
      if (machine.kindOf(node) === "hbm_ctrl") machine.hbm.push(node);
    });
    machine.nameOfPe = (pe) => placeName(...given.pes[pe]);
    const packages = given.sips.map((sip) => sip.package);
    const ends = packages.map(([x, y, w, h]) => [x + w, y + h]);
    const tops = nodes.id.map((_, node) => nodes.y[node] - nodes.h[node] / 2);
    const left = Math.min(...packages.map(([x]) => x), ...nodes.x);
    const top = Math.min(...tops);
    machine.bounds = [
      left - 5,
      top - 1,
      Math.max(...ends.map(([x]) => x)) - left + 10,
      Math.max(...ends.map(([, y]) => y)) - top + 5,
    ];
    return machine;
  };

  /** One window, by bins: for each link its bytes; for each PE and row, and each memory, how many ps it was busy. */
  const makeWindow = (given, number, machine, run, section) => {
    const bins = given.bins;
    const span = given.end_ps - given.start_ps;
    const traffic = new Float64Array(given.links.length * bins);
    const reader = new Reader(section(`traffic${number}`));
    given.links.forEach((_, at) => reader.sparse(traffic, at * bins));
    const rows = run.rows.length + 1;
    const busy = new Float64Array(run.active.length * rows * bins);
    const busyReader = new Reader(section(`busy${number}`));
    for (let at = 0; at < run.active.length * rows; at++) busyReader.sparse(busy, at * bins);
    const memories = new Float64Array(given.memories.length * bins);
    const memoryReader = new Reader(section(`memories${number}`));
    given.memories.forEach((_, at) => memoryReader.sparse(memories, at * bins));
    const memoryAt = new Map(given.memories.map((node, at) => [node, at]));

    const slotOf = new Int32Array(machine.edges.src.length).fill(-1);
    given.links.forEach((edge, at) => {
      slotOf[edge] = at;
    });
    const sum = (values, from) => {
      let all = 0;
      for (let at = from; at < from + bins; at++) all += values[at];
      return all;
    };
    const linkBytes = given.links.map((_, at) => sum(traffic, at * bins));
    const busyPs = Array.from({ length: run.active.length * rows }, (_, at) => sum(busy, at * bins));
    const total = new Float64Array(bins);
    traffic.forEach((bytes, at) => {
      total[at % bins] += bytes;
    });
    // As TimeWindow.edges has them: a bin and what is in it are of the same length.
    const edgeAt = (bin) => given.start_ps + Math.floor((span * bin) / bins);
    return {
      ...given,
      number,
      span,
      traffic,
      busy,
      slotOf,
      linkBytes,
      busyPs,
      total,
      rowCount: rows,
      binStart: edgeAt,
      binPs: (bin) => edgeAt(bin + 1) - edgeAt(bin),
      binAt: (ps) => KB.clamp(Math.floor(((ps - given.start_ps) / span) * bins), 0, bins - 1),
      /** Bytes of a link in a bin, or in all of the window for bin -1. */
      bytes: (edge, bin) =>
        slotOf[edge] < 0 ? 0 : bin < 0 ? linkBytes[slotOf[edge]] : traffic[slotOf[edge] * bins + bin],
      /** How long a row of a PE was busy, in ps. The PE is given by its place among those that did anything. */
      busyOf: (active, row, bin) => (bin < 0 ? busyPs[active * rows + row] : busy[(active * rows + row) * bins + bin]),
      ps(bin) {
        return bin < 0 ? span : this.binPs(bin);
      },
      /** Share of its bandwidth that a link used; 1 GB/s is a byte a ns. Beyond 1 it is the rounding to whole ps. */
      utilisation(edge, bin) {
        return Math.min(1, (this.bytes(edge, bin) * 1000) / (machine.edges.bw_gbs[edge] * this.ps(bin)));
      },
      /** Share of time in which a memory worked on accesses. */
      memoryShare(node, bin) {
        const at = memoryAt.get(node);
        if (at === undefined) return 0;
        return (bin < 0 ? sum(memories, at * bins) : memories[at * bins + bin]) / this.ps(bin);
      },
    };
  };

  /** Spans of a row of a PE: columns of start and end in ps and of labels, and lanes where they overlap. */
  const decodeRow = (bytes, count) => {
    const reader = new Reader(bytes);
    const row = {
      count,
      starts: new Float64Array(count),
      ends: new Float64Array(count),
      labels: new Int32Array(count),
      lanes: new Uint16Array(count),
      laneCount: 1,
      longest: 0,
    };
    const ends = [];
    let start = 0;
    for (let at = 0; at < count; at++) {
      start += reader.next();
      const end = start + reader.next();
      let lane = ends.findIndex((free) => free <= start);
      if (lane < 0) lane = ends.length;
      ends[lane] = end;
      row.starts[at] = start;
      row.ends[at] = end;
      row.labels[at] = reader.next();
      row.lanes[at] = lane;
      row.longest = Math.max(row.longest, end - start);
    }
    row.laneCount = Math.max(1, ends.length);
    return row;
  };

  // Number of windows that stay decoded; a user views few of hundreds of launches at a time.
  const MOST_WINDOWS = 12;

  /** What a launch is called where others have its name: which of them, and where it ran. */
  const nameWindows = (run, machine) => {
    const count = new Map();
    for (const { name } of run.windows.slice(1)) count.set(name, (count.get(name) || 0) + 1);
    const seen = new Map();
    run.windows.forEach((window, at) => {
      if (!at) {
        window.label = run.begin_ps ? "loading and run" : "whole run";
        return;
      }
      seen.set(window.name, (seen.get(window.name) || 0) + 1);
      const sip = run.requests[window.request][2];
      const which = count.get(window.name) > 1 ? ` ${seen.get(window.name)} of ${count.get(window.name)}` : "";
      window.label = `launch ${window.name}${which}${sip >= 0 && machine.sips.length > 1 ? `, SIP ${sip}` : ""}`;
    });
  };

  const makeRun = (given, machine, section) => {
    const run = { ...given, activeAt: new Int32Array(machine.pes.length).fill(-1), usage: new Map() };
    run.active.forEach((pe, at) => {
      run.activeAt[pe] = at;
    });
    run.links.forEach(([edge, nbytes, busy, fifo]) => run.usage.set(edge, { nbytes, busy, fifo }));
    run.queuesOf = new Map(run.queues.map(([pe, busy, queues]) => [pe, { busy, queues }]));
    nameWindows(run, machine);
    run.engines = [...run.rows, "any engine"];
    const windows = new Map();
    run.window = (number) => {
      if (!windows.has(number)) {
        if (windows.size >= MOST_WINDOWS) windows.delete(windows.keys().next().value);
        windows.set(number, makeWindow(run.windows[number], number, machine, run, section));
      }
      return windows.get(number);
    };
    const offsets = [];
    let offset = 0;
    run.timeline.index.forEach(([, length]) => {
      offsets.push(offset);
      offset += length;
    });
    const decoded = new Map();
    run.row = (active, row) => {
      const at = active * run.rows.length + row;
      if (!decoded.has(at)) {
        const [count, length] = run.timeline.index[at];
        decoded.set(at, decodeRow(section("spans").subarray(offsets[at], offsets[at] + length), count));
      }
      return decoded.get(at);
    };
    run.spanCount = (active, row) => run.timeline.index[active * run.rows.length + row][0];
    return run;
  };

  KB.loadData = async (text) => {
    const bytes = await inflate(text);
    const length = new DataView(bytes.buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    const section = (name) => {
      const [at, size] = head.sections[name];
      return bytes.subarray(4 + length + at, 4 + length + at + size);
    };
    KB.version = head.version;
    KB.problem = head.notice;
    KB.machine = makeMachine(head.machine);
    KB.run = head.run && makeRun(head.run, KB.machine, section);
  };
})();
