/* The head of the page: the program, its errors, and the bottleneck. */
(() => {
  const { byId, el, format } = KB;

  KB.notice = (text) => {
    const notice = byId("notice");
    notice.hidden = !text;
    const words = KB.plain(text);
    if (notice.textContent !== words) notice.textContent = words;
  };

  const drawTitle = () => {
    const { machine, run } = KB;
    byId("title").replaceChildren(KB.plain(run ? run.bench : "Machine"), el("small", { text: "kernbench" }));
    const items = run
      ? [
          [run.status === "OK" ? "ok" : "bad", run.status],
          ["", "", format.time(run.sim_ps), "simulated"],
          ...(run.begin_ps ? [["", "after ", format.time(run.begin_ps), "of loading"]] : []),
        ]
      : [["", "no run"]];
    const { facts } = machine;
    const fact = (name) => (facts.find(([each]) => each === name) || ["", ""])[1];
    byId("summary").replaceChildren(
      ...items.map(([kind, plain, bold, after]) =>
        el("li", { class: kind || null }, plain || "", bold ? el("b", { text: bold }) : "", after ? ` ${after}` : ""),
      ),
      el("li", {}, el("b", { text: fact("SIPs").split(",")[0] }), " SIPs"),
      el("li", {}, el("b", { text: fact("cubes").split(",")[0] }), " cubes"),
      el("li", {}, el("b", { text: fact("PEs").split(",")[0] }), " PEs"),
    );
  };

  // ---- The verdict: of the run always; below it that of the launch that is shown, or of the one with most of the time

  const verdictOf = (window) => KB.run.paths[window].verdict;

  const launchLine = () => {
    const { run, state } = KB;
    const [heaviest, share] = run.heaviest;
    const shown = state.window || heaviest;
    if (!shown) return [];
    const name = state.window
      ? run.windows[shown].label
      : `${run.windows[shown].label}, most of the kernels' time: ${format.share(share)} of the critical path`;
    return [
      el("b", { text: name }),
      el("span", { class: "binds", text: verdictOf(shown) }),
      el("button", {
        type: "button",
        text: state.window ? "Show the run" : "Show it",
        onclick: () => KB.chooseWindow(state.window ? 0 : heaviest),
      }),
    ];
  };

  const drawVerdict = () => {
    if (!KB.run) return;
    const got = ["Run", KB.run.begin_ps && "after loading", KB.run.status !== "OK" && "as far as it got"];
    byId("verdict").hidden = false;
    byId("verdict-run").replaceChildren(
      el("b", { text: got.filter(Boolean).join(", ") }),
      el("span", { class: "binds", text: verdictOf(0) }),
    );
    byId("verdict-launch").replaceChildren(...launchLine());
  };

  KB.head = {
    start() {
      drawTitle();
      KB.notice(KB.problem);
      drawVerdict();
      KB.watch(["window"], drawVerdict);
      KB.watch(["window", "tab"], () => KB.tip(null)); // what it is about may be gone
    },
  };
})();
