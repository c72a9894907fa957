/* The roofline: launches by arithmetic intensity and the rate achieved, under the roofs of the machine. */
(() => {
  const { el, format } = KB;
  const [WIDTH, HEIGHT] = [560, 330];
  const PLOT = { left: 62, right: 12, top: 14, bottom: 40 };
  const MOST_NAMES = 12;
  const NAME_PX = 15; // names closer than this lie on each other
  const SIZES = [6.5, 4.8, 3.2]; // of marks: of a launch with as many bytes from two memories both can be seen

  const svg = (tag, attributes, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children.map((child) => (child instanceof Node ? child : KB.plain(child))));
    return made;
  };

  const number = (value) => Number(value.toPrecision(4)).toLocaleString("en-US", { maximumSignificantDigits: 4 });

  /** Places of a chart in its picture. */
  const placeIn = ({ limits: [left, right, low, high] }) => {
    const along = (value, from, to, length) => (Math.log(value / from) / Math.log(to / from)) * length;
    return {
      x: (value) => PLOT.left + along(value, left, right, WIDTH - PLOT.left - PLOT.right),
      y: (value) => HEIGHT - PLOT.bottom - along(value, low, high, HEIGHT - PLOT.top - PLOT.bottom),
    };
  };

  /** 1, 2, 5, 10 … between two numbers, or powers of ten where those are too many. */
  const ticksOf = (from, to) => {
    const steps = to / from > 1000 ? [1] : [1, 2, 5];
    const found = [];
    for (let power = Math.floor(Math.log10(from)); 10 ** power <= to; power++)
      found.push(...steps.map((step) => step * 10 ** power).filter((tick) => tick >= from && tick <= to));
    return found;
  };

  const axes = (chart, place) => {
    const [left, right, low, high] = chart.limits;
    const [bottom, end] = [HEIGHT - PLOT.bottom, WIDTH - PLOT.right];
    const across = ticksOf(left, right).flatMap((tick) => [
      svg("line", { class: "grid", x1: place.x(tick), x2: place.x(tick), y1: PLOT.top, y2: bottom }),
      svg("text", { x: place.x(tick), y: bottom + 15, "text-anchor": "middle" }, number(tick)),
    ]);
    const up = ticksOf(low, high).flatMap((tick) => [
      svg("line", { class: "grid", x1: PLOT.left, x2: end, y1: place.y(tick), y2: place.y(tick) }),
      svg("text", { x: PLOT.left - 6, y: place.y(tick) + 4, "text-anchor": "end" }, number(tick)),
    ]);
    const middle = (PLOT.top + bottom) / 2;
    return [
      ...across,
      ...up,
      svg(
        "text",
        { x: (PLOT.left + end) / 2, y: HEIGHT - 6, "text-anchor": "middle" },
        `${chart.unit} for each byte of the memory's busiest instance`,
      ),
      svg("text", { transform: `translate(12 ${middle}) rotate(-90)`, "text-anchor": "middle" }, `${chart.unit}/ns achieved`),
    ];
  };

  const roofs = (chart, place) => {
    const [left, right] = chart.limits;
    const top = Math.max(...chart.flat.map(([, , rate]) => rate));
    const fastest = Math.max(...chart.sloped.map(([, , rate]) => rate));
    const line = (from, to, more) =>
      svg("line", { x1: place.x(from[0]), y1: place.y(from[1]), x2: place.x(to[0]), y2: place.y(to[1]), ...more });
    const flat = chart.flat.flatMap(([, name, rate]) => [
      line([Math.max(rate / fastest, left), rate], [right, rate], { class: "roof" }),
      svg(
        "text",
        { class: "strong", x: WIDTH - PLOT.right - 2, y: place.y(rate) - 5, "text-anchor": "end" },
        `${name}: ${number(rate)} ${chart.unit}/ns`,
      ),
    ]);
    const sloped = chart.sloped.map(([memory, , rate]) => {
      const reach = Math.min(top / rate, right);
      const [, , low] = chart.limits;
      const from = Math.max(left, low / rate);
      return line([from, from * rate], [reach, reach * rate], { class: "roof", style: `stroke:${KB.colours.memory(memory)}` });
    });
    return [...sloped, ...flat];
  };

  /** The largest rate that a launch of this intensity can have at a memory. */
  const roofAt = (chart, memory, intensity) => {
    const [, , rate] = chart.sloped.find(([name]) => name === memory);
    return Math.min(rate * intensity, Math.max(...chart.flat.map((each) => each[2])));
  };

  const linesOf = (chart, [window, memory, intensity, rate]) => [
    KB.run.windows[window].label,
    `${number(rate)} ${chart.unit}/ns, ${format.share(rate / roofAt(chart, memory, intensity))} of the roof of ${memory}`,
    `${number(intensity)} ${chart.unit} for each byte of ${memory}`,
    KB.run.paths[window].verdict,
  ];

  const marks = (chart, place) => {
    const order = chart.sloped.map(([memory]) => memory);
    return [...chart.points]
      .sort((a, b) => order.indexOf(a[1]) - order.indexOf(b[1]))
      .map((point) => {
        const [window, memory, intensity, rate] = point;
        const made = svg("circle", {
          class: window === KB.state.window ? "mark chosen" : "mark",
          cx: place.x(intensity),
          cy: place.y(rate),
          r: SIZES[Math.max(0, order.indexOf(memory))] || 3,
          style: `fill:${KB.colours.memory(memory)}`,
          onclick: () => KB.chooseWindow(window),
        });
        KB.tipOn(made, () => linesOf(chart, point));
        return made;
      });
  };

  /** Names beside the rightmost marks of launches; those that would lie on each other share a place. */
  const names = (chart, place) => {
    const rightmost = new Map();
    for (const [window, , intensity, rate] of chart.points) {
      const { name } = KB.run.windows[window];
      const best = rightmost.get(name);
      if (!best || intensity > best.intensity) rightmost.set(name, { name, intensity, rate });
    }
    const places = [];
    for (const { name, intensity, rate } of [...rightmost.values()].slice(0, MOST_NAMES)) {
      const [x, y] = [place.x(intensity), place.y(rate)];
      const near = places.find((each) => Math.abs(each.x - x) < 4 * NAME_PX && Math.abs(each.y - y) < NAME_PX);
      if (near) near.words.push(name);
      else places.push({ x, y, words: [name] });
    }
    return places.map(({ x, y, words }) => {
      const late = x > WIDTH * 0.75;
      return svg(
        "text",
        { class: "strong", x: x + (late ? -9 : 9), y: y + 13, "text-anchor": late ? "end" : "start" },
        words.join(", "),
      );
    });
  };

  const draw = (chart) => {
    const place = placeIn(chart);
    const count = new Set(chart.points.map(([window]) => window)).size;
    const title = count
      ? `${chart.engine}, busiest PE · ${format.count(count)} ${count > 1 ? "launches" : "launch"}`
      : "No launch did arithmetic: the roofs of the machine";
    return el(
      "figure",
      { class: "roofline" },
      el("h3", { text: title }),
      svg(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Roofline: ${title}` },
        ...axes(chart, place),
        ...roofs(chart, place),
        ...marks(chart, place),
        ...names(chart, place),
      ),
      KB.legend(
        "memories",
        chart.sloped.map(([memory, name, rate]) => [KB.colours.memory(memory), `${name}: ${format.rate(rate)}`]),
      ),
    );
  };

  KB.roofline = {
    make(panel) {
      const fill = () => {
        if (panel.hidden) return;
        panel.replaceChildren(
          el("div", {
            class: "controls",
            text: "A launch far below its roofs is bound by latency; one at a roof by what the roof is of. Click a launch to see it.",
          }),
          el("div", { class: "charts" }, ...KB.run.charts.map(draw)),
        );
      };
      KB.watch(["window", "tab"], fill);
      fill();
    },
  };
})();
