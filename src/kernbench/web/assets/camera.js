/* Where on the board one looks: x and y in mm of the middle of the map, and pixels for a mm. */
(() => {
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const MOVE_MS = 260;
  const FOOT = 32; // pixels at the bottom of the map, where the key and the scale are
  const MOST = 900; // pixels for a mm: a PE's part fills the screen

  const camera = {
    x: 0,
    y: 0,
    scale: 1,
    width: 1,
    height: 1,
    least: 0.1,
    kept: null, // the shown rectangle, which stays when the map is resized
    toScreen(x, y) {
      return [(x - this.x) * this.scale + this.width / 2, (y - this.y) * this.scale + this.height / 2];
    },
    toBoard(px, py) {
      return [(px - this.width / 2) / this.scale + this.x, (py - this.height / 2) / this.scale + this.y];
    },
    /** What can be seen, in mm: west, north, east, south. */
    get view() {
      return [...this.toBoard(0, 0), ...this.toBoard(this.width, this.height)];
    },
    /** The camera from which a rectangle fills the map. */
    cameraFor([x, y, w, h], margin = 0.06) {
      const room = Math.max(this.height - FOOT, 1);
      const scale = KB.clamp(Math.min(this.width / w, room / h) * (1 - margin), this.least, MOST);
      return [x + w / 2, y + h / 2 + FOOT / 2 / scale, scale];
    },
    resize(width, height) {
      [this.width, this.height] = [width, height];
      const [, , w, h] = KB.machine.bounds;
      this.least = Math.min(width / w, height / h) * 0.5;
    },
    put([x, y, scale]) {
      const [left, top, w, h] = KB.machine.bounds;
      this.x = KB.clamp(x, left, left + w);
      this.y = KB.clamp(y, top, top + h);
      this.scale = KB.clamp(scale, this.least, MOST);
      KB.set({ camera: [this.x, this.y, this.scale] });
    },
    /** Show a rectangle until the reader moves. */
    keep(rect) {
      this.kept = rect;
      this.put(this.cameraFor(rect));
    },
    pan(dx, dy) {
      this.stop();
      this.put([this.x - dx / this.scale, this.y - dy / this.scale, this.scale]);
    },
    /** Zoom so that the point under (px, py) stays where it is. */
    zoomAt(factor, px = this.width / 2, py = this.height / 2) {
      this.stop();
      const [x, y] = this.toBoard(px, py);
      const scale = KB.clamp(this.scale * factor, this.least, MOST);
      this.put([x - (px - this.width / 2) / scale, y - (py - this.height / 2) / scale, scale]);
    },
    fit(rect, margin) {
      this.moveTo(this.cameraFor(rect, margin));
    },
    moveTo([x, y, scale]) {
      this.stop();
      if (calm.matches) {
        this.put([x, y, scale]);
        return;
      }
      const from = [this.x, this.y, Math.log(this.scale)];
      const to = [x, y, Math.log(scale)];
      const begin = performance.now();
      const step = (now) => {
        const way = Math.min(1, (now - begin) / MOVE_MS);
        const eased = 1 - (1 - way) ** 3;
        const [nx, ny, logScale] = from.map((each, at) => each + (to[at] - each) * eased);
        this.put([nx, ny, Math.exp(logScale)]);
        if (way < 1) this.frame = requestAnimationFrame(step);
      };
      this.frame = requestAnimationFrame(step);
    },
    frame: 0,
    stop() {
      this.kept = null;
      cancelAnimationFrame(this.frame);
    },
  };

  KB.camera = camera;
})();
