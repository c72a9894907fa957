/* The roofline: launches by arithmetic intensity and the rate achieved, under the roofs of the machine. */
(() => {
  const { el, format } = KB;
  const [LEAST_WIDTH, MOST_WIDTH, LEAST_HEIGHT, MOST_HEIGHT] = [280, 680, 190, 420];
  const BESIDE = 34; // pixels between charts
  const BELOW = 108; // pixels of the panel that are not of the charts
  const PLOT = { left: 62, right: 12, top: 14, bottom: 40 };
  const MOST_NAMES = 12;
  const SAME_PX = 8; // marks closer than this have their names in one place
  const [NAME_PX, LETTER_PX] = [12, 6];
  const SIZES = [6.5, 4.8, 3.2]; // of marks: of a launch with as many bytes from two memories both can be seen

  const svg = (tag, attributes, ...children) => {
    const made = document.createElementNS(document.querySelector("svg").namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children.map((child) => (child instanceof Node ? child : KB.plain(child))));
    return made;
  };

  const number = (value) => Number(value.toPrecision(4)).toLocaleString("en-US", { maximumSignificantDigits: 4 });

  /** How large a chart can be, so that all are seen at once. */
  const sizeOf = (panel) => {
    const count = KB.run.charts.length;
    const beside = panel.clientWidth >= count * (LEAST_WIDTH + BESIDE) ? count : 1;
    return {
      width: KB.clamp(panel.clientWidth / beside - BESIDE, LEAST_WIDTH, MOST_WIDTH),
      height: KB.clamp(panel.clientHeight - BELOW, LEAST_HEIGHT, MOST_HEIGHT),
    };
  };

  /** Places of a chart in a picture of some size. */
  const placeIn = ({ limits: [left, right, low, high] }, { width, height }) => {
    const along = (value, from, to, length) => (Math.log(value / from) / Math.log(to / from)) * length;
    return {
      width,
      height,
      end: width - PLOT.right,
      bottom: height - PLOT.bottom,
      x: (value) => PLOT.left + along(value, left, right, width - PLOT.left - PLOT.right),
      y: (value) => height - PLOT.bottom - along(value, low, high, height - PLOT.top - PLOT.bottom),
    };
  };

  /** 1, 2, 5, 10 … between two numbers, or powers of ten where those are too many. */
  const ticksOf = (from, to, most) => {
    const steps = to / from > most ? [1] : [1, 2, 5];
    const found = [];
    for (let power = Math.floor(Math.log10(from)); 10 ** power <= to; power++)
      found.push(...steps.map((step) => step * 10 ** power).filter((tick) => tick >= from && tick <= to));
    return found;
  };

  const axes = (chart, place) => {
    const [left, right, low, high] = chart.limits;
    const { bottom, end } = place;
    const across = ticksOf(left, right, 1000).flatMap((tick) => [
      svg("line", { class: "grid", x1: place.x(tick), x2: place.x(tick), y1: PLOT.top, y2: bottom }),
      svg("text", { x: place.x(tick), y: bottom + 15, "text-anchor": "middle" }, number(tick)),
    ]);
    const up = ticksOf(low, high, place.height < 260 ? 100 : 1000).flatMap((tick) => [
      svg("line", { class: "grid", x1: PLOT.left, x2: end, y1: place.y(tick), y2: place.y(tick) }),
      svg("text", { x: PLOT.left - 6, y: place.y(tick) + 4, "text-anchor": "end" }, number(tick)),
    ]);
    const middle = (PLOT.top + bottom) / 2;
    return [
      ...across,
      ...up,
      svg(
        "text",
        { x: (PLOT.left + end) / 2, y: place.height - 6, "text-anchor": "middle" },
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
        { class: "strong", x: place.end - 2, y: place.y(rate) - 5, "text-anchor": "end" },
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

  const linesOf = (chart, [window, memory, intensity, rate, roof, most]) => [
    KB.run.windows[window].label,
    `${number(rate)} ${chart.unit}/ns, ${format.share(rate / most)} of what the ${roof} allows`,
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
    const found = [];
    for (const { name, intensity, rate } of [...rightmost.values()].slice(0, MOST_NAMES)) {
      const [x, y] = [place.x(intensity), place.y(rate)];
      const same = found.find((each) => Math.abs(each.x - x) < SAME_PX && Math.abs(each.y - y) < SAME_PX);
      if (same) same.words += `, ${name}`;
      else found.push({ x, y, words: name });
    }
    const taken = [];
    return found.map(({ x, y, words }) => {
      const length = words.length * LETTER_PX;
      const late = x + length > place.end;
      const from = late ? x - length : x;
      const free = (at) =>
        at < place.bottom && taken.every(([x0, x1, y0]) => from > x1 || from + length < x0 || Math.abs(at - y0) >= NAME_PX);
      const at = [13, -7, 26, -20, 39].map((by) => y + by).find(free) || y + 13;
      taken.push([from, from + length, at]);
      return svg("text", { class: "strong", x: late ? x - 9 : x + 9, y: at, "text-anchor": late ? "end" : "start" }, words);
    });
  };

  const draw = (chart, size) => {
    const place = placeIn(chart, size);
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
        { width: size.width, height: size.height, role: "img", "aria-label": `Roofline: ${title}` },
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
        const size = sizeOf(panel);
        panel.replaceChildren(
          el("div", {
            class: "controls",
            text: "A launch far below its roofs is bound by latency; one at a roof by what the roof is of. Click a launch to see it.",
          }),
          el("div", { class: "charts" }, ...KB.run.charts.map((chart) => draw(chart, size))),
        );
      };
      KB.watch(["window", "tab", "size", "dock"], fill);
      fill();
    },
  };
})();
