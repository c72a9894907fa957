/* The page's one global, and the tools that everything uses: elements, canvases, tooltips, tables with bars, numbers. */
const KB = {};

(() => {
  // Control characters, and those that turn the direction of what follows: names may have them, readers see escapes.
  const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;
  const escape = (letter) => {
    const code = letter.charCodeAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  };

  /** A name or a message as it may be shown. */
  KB.plain = (text) => String(text).replace(UNSEEN, escape);

  /** An element with attributes (`on…` are listeners, `text` its text) and children. */
  KB.el = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "text") made.textContent = KB.plain(value);
      else made.setAttribute(name, value === true ? "" : KB.plain(value));
    }
    made.append(...children.filter((child) => child !== null).map(toNode));
    return made;
  };

  const toNode = (child) => (child instanceof Node ? child : KB.plain(child));

  KB.byId = (id) => document.getElementById(id);

  KB.clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  /** Give a canvas as many pixels as the screen has for it; returns its context, scaled to CSS pixels. */
  KB.fitCanvas = (canvas) => {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = canvas;
    const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return { context, width, height };
  };

  // ---- One tooltip for everything, near the pointer

  const hideTip = () => {
    KB.byId("tooltip").hidden = true;
  };

  /** Show a tooltip of some lines, the first a heading, at a place of the window; none: hide it. */
  KB.tip = (lines, x, y) => {
    const tip = KB.byId("tooltip");
    tip.hidden = !lines;
    if (!lines) return;
    const [head, ...rest] = lines.filter(Boolean);
    tip.replaceChildren(
      KB.el("b", { text: head }),
      ...rest.flatMap((line) => [KB.el("br"), KB.el("span", { text: line })]),
    );
    const [w, h] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = `${KB.clamp(x + 14, 4, Math.max(4, window.innerWidth - w - 4))}px`;
    tip.style.top = `${y + 16 + h > window.innerHeight - 4 ? Math.max(4, y - h - 10) : y + 16}px`;
  };

  /** Show `linesAt(event)` as a tooltip while the pointer is on an element; a touch leaves it until the next one. */
  KB.tipOn = (element, linesAt) => {
    const show = (event) => KB.tip(linesAt(event), event.clientX, event.clientY);
    element.addEventListener("pointermove", show);
    element.addEventListener("pointerup", show);
    element.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") hideTip();
    });
  };
  document.addEventListener("pointerdown", hideTip, true);
  document.addEventListener("scroll", hideTip, true);

  // ---- Tables of figures with bars

  /** A cell with a bar as long as a share. */
  KB.meter = (share, colour) =>
    KB.el(
      "td",
      { class: "meter" },
      KB.el(
        "span",
        { class: "bar-cell" },
        KB.el("i", {
          style: `width:${(KB.clamp(share, 0, 1) * 100).toFixed(1)}%${colour ? `;background:${colour}` : ""}`,
        }),
      ),
    );

  KB.swatch = (colour) => KB.el("span", { class: "swatch", style: `background:${colour}` });

  /** A row of a table of figures: a name, figures, and a bar; `says` is its tooltip. */
  KB.meterRow = (name, figures, share, { colour, says } = {}) =>
    KB.el(
      "tr",
      { title: says },
      KB.el("th", { scope: "row" }, colour ? KB.swatch(colour) : null, name),
      ...figures.map((text) => KB.el("td", { text })),
      KB.meter(share, colour),
    );

  /** A table of figures; heads in `words` are of columns of words. */
  KB.meters = (heads, rows, words = []) =>
    KB.el(
      "table",
      { class: "meters" },
      KB.el(
        "thead",
        {},
        KB.el(
          "tr",
          {},
          ...heads.map((text) => KB.el("th", { scope: "col", class: words.includes(text) ? "text" : null, text })),
        ),
      ),
      KB.el("tbody", {}, ...rows),
    );

  /** What colours mean: [colour, name, says] each. */
  KB.legend = (title, items) =>
    KB.el(
      "ul",
      { class: "colours", "aria-label": title },
      KB.el("li", { class: "of", text: title }),
      ...items.map(([colour, name, says]) => KB.el("li", { title: says }, KB.swatch(colour), name)),
    );

  /** Index of the last of `sorted` that is not larger than `value`; -1 when all are. */
  KB.lastNotAbove = (sorted, value) => {
    let [low, high] = [0, sorted.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= value) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  };
})();

/* Numbers with their units, written the same way everywhere. Times come in ps, sizes in bytes. */
(() => {
  const figure = (value, digits) =>
    value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

  /** Three figures or so: 1,234 · 123 · 12.3 · 1.23. */
  const short = (value) => {
    const size = Math.abs(value);
    return figure(value, size >= 100 ? 0 : size >= 10 ? 1 : 2);
  };

  const TIMES = [
    [1e9, "ms"],
    [1e6, "µs"],
    [1e3, "ns"],
    [1, "ps"],
  ];
  const SIZES = [
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
    [1, "B"],
  ];

  const withUnit = (value, units, digits) => {
    if (value === 0) return `0 ${units[units.length - 1][1]}`;
    const [scale, unit] = units.find(([least]) => Math.abs(value) >= least) || units[units.length - 1];
    const whole = scale === 1;
    const size = value / scale;
    const words = whole ? figure(size, 0) : digits === undefined ? short(size) : figure(size, digits);
    return `${words} ${unit}`;
  };

  KB.format = {
    figure,
    count: (value) => figure(value, 0),
    time: (ps) => withUnit(ps, TIMES),
    /** A moment, with enough digits to tell it from its neighbours `step` ps away. */
    moment: (ps, step) => {
      const [scale, unit] = TIMES.find(([least]) => Math.abs(ps) + step >= least) || TIMES[3];
      const digits = KB.clamp(Math.ceil(-Math.log10(step / scale)) + 1, 0, 6);
      return `${figure(ps / scale, digits)} ${unit}`;
    },
    ns: (ps) => figure(ps / 1000, ps < 1e6 ? 1 : 0),
    size: (bytes) => withUnit(bytes, SIZES),
    rate: (gbs) => `${short(gbs)} GB/s`,
    share: (part) => (part > 0 && part < 0.001 ? "<0.1 %" : `${figure(part * 100, 1)} %`),
    mm: (mm) => `${figure(mm, mm < 10 ? 2 : 1).replace(/\.?0+$/, "")} mm`,
  };
})();
