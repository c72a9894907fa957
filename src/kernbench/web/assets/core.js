/* The page's one global, and the two tools that everything uses: making elements, and a small publisher. */
const KB = {};

(() => {
  /** An element with attributes (`on…` are listeners, `text` its text) and children. */
  KB.el = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "text") made.textContent = value;
      else made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  };

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
