// The page: a header with the plans and the theme, and the sections of the chosen plan.

const data = JSON.parse(document.getElementById("data").textContent);
const plans = data.plans.map((_, index) => withReceived(readPlan(data, index)));
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");

function sections(plan) {
  const base = plans[0];
  return [summarySection(plans, plan), plans.length > 1 && compareSection(plans), new Set(plans.map((one) => one.devices)).size > 1 && scaleSection(plans), plan.change && changeSection(plans, plan), deviceSection(plan, base), bottleneckSection(plan),
    tableSection(plan), plan.whatIf && whatIfSection(plan), plan.tiered.length > 0 && tierSection(plan), plan.traffic.length > 0 && trafficSection(plan), plan.measured && measuredSection(plan), plan.tuning && tuningSection(plan)].filter(Boolean);
}

function show(index) {
  tip.hide();
  const parts = sections(plans[index]);
  document.getElementById("main").replaceChildren(...parts);
  const links = parts.slice(1).map((part) => el("li", {}, el("a", { href: "#" + part.id }, part.querySelector("h2").textContent)));
  document.getElementById("contents").replaceChildren(...links);
  document.querySelectorAll("#plans button").forEach((button, at) => button.setAttribute("aria-pressed", String(at === index)));
}

function repaint() {
  document.querySelectorAll("figure").forEach((node) => node.redraw());
}

const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);

function header() {
  const toggle = el("button", { type: "button", id: "theme", onclick: () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
    repaint();
  } });
  const label = () => { toggle.textContent = isDark() ? "Light colours" : "Dark colours"; };
  label();
  dark.addEventListener("change", () => { label(); repaint(); });
  const choices = plans.length > 1 && el("div", { id: "plans", role: "group", "aria-label": "Plan shown in detail" },
    plans.map((plan, index) => el("button", { type: "button", onclick: () => show(index) }, plan.name)));
  const title = plans.length > 1 ? plural(plans.length, "sharding plan") : plans[0].name;
  return [el("div", { class: "masthead" }, el("p", { class: "brand" }, "Shardwright"), el("h1", {}, title), toggle), choices,
    el("nav", { "aria-label": "Sections" }, el("ul", { id: "contents" }))];
}

document.getElementById("top").append(...header().filter(Boolean));
show(plans.length - 1);

// Paper is light: canvases take their colours when they are painted, so they are painted anew before and after.
let screenTheme = null;
addEventListener("beforeprint", () => {
  screenTheme = root.dataset.theme || "";
  root.dataset.theme = "light";
  repaint();
});
addEventListener("afterprint", () => {
  if (screenTheme) root.dataset.theme = screenTheme;
  else delete root.dataset.theme;
  repaint();
});
