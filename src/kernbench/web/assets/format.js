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
