// <lh-picture>: an image, sound or film, fetched with the token when it comes into view; anything
// else becomes a download. <lh-bars>: bars of a histogram.

import * as api from "../lib/api.js";
import { bytes, visible } from "../lib/format.js";

const SHOWN = { image: "img", audio: "audio", video: "video" };

class Picture extends HTMLElement {
  connectedCallback() {
    this.viewed ??= new IntersectionObserver(([entry]) => entry.isIntersecting && this.fill(), { rootMargin: "300px" });
    this.viewed.observe(this);
  }

  disconnectedCallback() {
    this.viewed.disconnect();
  }

  set given(given) {
    if (given.digest === this.now?.digest) return;
    this.now = given;
    this.isFilled = false;
    this.replaceChildren();
    if (this.isConnected) this.viewed.observe(this);
  }

  async fill() {
    const { now } = this;
    if (this.isFilled || !now) return;
    this.isFilled = true;
    this.viewed.unobserve(this);
    try {
      const address = await api.blob(now.digest, now.media_type);
      if (now === this.now) this.replaceChildren(this.element(now, address));
    } catch (error) {
      this.isFilled = false;
      this.textContent = `${error.message} ${error.remedy ?? ""}`;
    }
  }

  element(now, address) {
    const tag = SHOWN[(now.media_type ?? "").split("/")[0]];
    if (!tag || now.media_type.startsWith("image/svg")) return this.link(now, address);
    const made = document.createElement(tag);
    made.src = address;
    if (tag === "img") {
      made.alt = visible(now.caption || `${now.name} at step ${now.step}`);
      if (now.width) made.width = now.width;
      if (now.height) made.height = now.height;
    } else {
      made.controls = true;
      made.setAttribute("aria-label", visible(now.caption || now.name));
    }
    return made;
  }

  link(now, address) {
    const link = document.createElement("a");
    link.href = address;
    link.download = now.name.replaceAll("/", "_");
    link.textContent = `save ${visible(now.type)}, ${bytes(now.size)}`;
    return link;
  }
}

class Bars extends HTMLElement {
  set given(given) {
    this.replaceChildren(...given.map((part) => {
      const bar = document.createElement("span");
      bar.style.height = `${Math.round(part * 100)}%`;
      return bar;
    }));
  }
}

customElements.define("lh-picture", Picture);
customElements.define("lh-bars", Bars);
