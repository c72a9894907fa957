/* The slider over time, and above it how much all links carried. */
(() => {
  const { byId, el, format } = KB;

  const drawClock = () => {
    const window = KB.current();
    const { bin, mode } = KB.state;
    const step = window.binPs(bin);
    const since = window.binStart(bin) - KB.zeroPs();
    const from = format.moment(Math.abs(since), step);
    const average = mode === "average";
    const loads = !KB.state.window && KB.run.begin_ps > 0;
    const span = `average of ${format.time(window.span)}${loads ? ", loading included" : ""}`;
    byId("clock").replaceChildren(
      ...(average
        ? [el("b", { text: span })]
        : [
            el("b", { text: from }),
            ` ${since < 0 ? "before" : "after"} ${KB.zero()}, for ${format.time(step)} · all links ${format.rate((window.total[bin] * 1000) / step)}`,
          ]),
    );
    const slider = byId("time");
    slider.max = window.bins - 1;
    slider.value = bin;
    slider.setAttribute(
      "aria-valuetext",
      average ? span : `${from}, for ${format.time(step)}`,
    );
    for (const button of byId("mode").children) {
      const chosen = button.dataset.mode === mode;
      button.setAttribute("aria-checked", chosen);
      button.tabIndex = chosen ? 0 : -1;
    }
  };

  const drawSpark = () => {
    const window = KB.current();
    const rates = Array.from(window.total, (bytes, at) => bytes / window.binPs(at));
    KB.drawBars(byId("spark"), rates, Math.max(...rates), KB.state.mode === "moment" ? KB.state.bin : -1);
  };

  const drawPlay = () => {
    byId("play").textContent = KB.state.playing ? "❚❚" : "▶";
    byId("play").setAttribute("aria-label", KB.state.playing ? "Pause" : "Play");
  };

  const withoutRun = () => {
    for (const id of ["window-field"]) byId(id).hidden = true;
    for (const id of ["legend", "key"]) byId(id).hidden = true;
    byId("timebar").classList.add("empty");
    byId("timebar").replaceChildren(
      "No run in this page: there is no time to look at. Make one with ",
      el("code", { text: "kernbench web --bench NAME" }),
      ".",
    );
  };

  KB.timebar = {
    start() {
      if (!KB.run) {
        withoutRun();
        return;
      }
      const windows = KB.run.windows.map((window, at) =>
        el("option", {
          value: at,
          text: `${window.label} · ${format.time(window.end_ps - window.start_ps)}`,
        }),
      );
      byId("window").append(...windows);
      byId("window").value = KB.state.window;
      byId("window").onchange = (event) => KB.chooseWindow(Number(event.target.value));
      const engines = KB.run.engines.map((name, at) => el("option", { value: at, text: name }));
      byId("engine").append(engines.pop(), ...engines);
      byId("engine").onchange = (event) =>
        KB.set({ engine: Number(event.target.value) === KB.run.rows.length ? -1 : Number(event.target.value) });
      byId("scale").onchange = (event) => KB.set({ scale: event.target.value });
      byId("time").oninput = (event) => KB.set({ bin: Number(event.target.value), mode: "moment" });
      byId("play").onclick = () => KB.play(!KB.state.playing);
      for (const button of byId("mode").children) button.onclick = () => KB.set({ mode: button.dataset.mode });
      byId("mode").onkeydown = (event) => {
        if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) return;
        KB.set({ mode: KB.state.mode === "average" ? "moment" : "average" });
        KB.flush();
        byId("mode").querySelector('[aria-checked="true"]').focus();
        event.preventDefault();
      };
      KB.watch(["window", "bin", "mode"], drawClock);
      KB.watch(["window", "bin", "mode", "theme", "size"], drawSpark);
      KB.watch(["window"], () => {
        byId("window").value = KB.state.window;
      });
      KB.watch(["playing"], drawPlay);
      drawClock();
      drawSpark();
    },
  };
})();
