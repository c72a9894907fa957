/* A served page asks its server whether there is a newer one. A page from a file has no version and asks nobody. */
(() => {
  const PAUSE_MS = 1000;

  const ask = async (version) => {
    try {
      const news = await (await fetch("version", { cache: "no-store" })).json();
      if (news.version !== version)
        location.reload(); // the address keeps what is shown
      else KB.notice(news.message || KB.problem);
    } catch {
      KB.notice("The server of this page does not answer; what is shown is the last run.");
    }
  };

  KB.live = {
    start() {
      const version = document.querySelector('meta[name="kernbench-version"]').content;
      if (version) setInterval(() => ask(version), PAUSE_MS);
    },
  };
})();
