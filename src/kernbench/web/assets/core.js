/* The page's one global, and the two tools that everything uses: making elements, and a small publisher. */
const KB = {};

(() => {
  // Control characters, and those that turn the direction of what follows: names may have them, readers see escapes.
  const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;
  const escaped = (letter) => {
    const code = letter.charCodeAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  };

  /** A name or a message as it may be shown. */
  KB.plain = (text) => String(text).replace(UNSEEN, escaped);

  /** An element with attributes (`on…` are listeners, `text` its text) and children. */
  KB.el = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "text") made.textContent = KB.plain(value);
      else made.setAttribute(name, value === true ? "" : KB.plain(value));
    }
    made.append(...children.filter((child) => child !== null).map(shown));
    return made;
  };

  const shown = (child) => (child instanceof Node ? child : KB.plain(child));

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
