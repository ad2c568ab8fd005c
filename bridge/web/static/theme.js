// Light, dark, or as the system says. Runs before the page is drawn, so that it never flashes.
(() => {
  const KEY = "delay-bridge-theme";
  const CHOICES = ["system", "light", "dark"];
  const root = document.documentElement;

  function chosen() {
    try {
      const kept = localStorage.getItem(KEY);
      return CHOICES.includes(kept) ? kept : "system";
    } catch {
      return "system"; // storage may be forbidden
    }
  }

  function apply(choice) {
    if (choice === "system") delete root.dataset.theme;
    else root.dataset.theme = choice;
    document.dispatchEvent(new Event("themechange"));
  }

  apply(chosen());
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => { button.textContent = `Theme: ${chosen()}`; };
    button.hidden = false;
    label();
    button.addEventListener("click", () => {
      const next = CHOICES[(CHOICES.indexOf(chosen()) + 1) % CHOICES.length];
      try {
        localStorage.setItem(KEY, next);
      } catch {
        // then it holds for this page only
      }
      apply(next);
      label();
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(chosen()));
})();
