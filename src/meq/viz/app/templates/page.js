// Every step is on the page already: moving along them asks nobody.
window.meqShow = (k) => {
  for (const look of document.querySelectorAll(".meq-look")) {
    look.style.setProperty("--k", k);
    const said = [];
    for (const frame of look.querySelectorAll(".frame")) {
      frame.hidden = Number(frame.dataset.k) !== k;
      if (!frame.hidden) said.push(frame.dataset.said);
    }
    const mark = k === Number(look.dataset.read) ? " (K, read here)" : "";
    look.querySelector(".said").textContent = `k = ${k}${mark}: ${said.join("; ")}`;
  }
};

window.meqPlay = async () => {
  const slider = document.querySelector("#meq-k input[type=range]");
  const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
  const playing = (window.meqPlaying = {});  // a second press begins anew, and ends the first
  for (let k = Number(slider.min); k <= Number(slider.max) && window.meqPlaying === playing; k++) {
    set.call(slider, k);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((wake) => setTimeout(wake, 450));
  }
};
