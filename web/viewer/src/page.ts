// The page: gives the viewer the secret, which is in the fragment of the address or is asked for. Browsers do not send the
// fragment to a server.

import { HawserView } from "./element";

customElements.define("hawser-view", HawserView);

const view = document.querySelector("hawser-view") as HawserView;
const form = document.querySelector("form") as HTMLFormElement;

// Loopback addresses are secure, too.
(document.querySelector("[role=note]") as HTMLElement).hidden = isSecureContext;

function watch(key: string): void {
    form.hidden = true;
    view.hidden = false;
    view.secret = key;
    view.focus();
}

function begin(): void {
    const fragment = new URLSearchParams(location.hash.slice(1));
    view.name = fragment.get("name") ?? "";
    const key = fragment.get("key");
    view.hidden = key === null;
    form.hidden = key !== null;
    if (key === null) return;
    // Neither the address bar nor the browser's history keeps the secret.
    history.replaceState(null, "", `#${new URLSearchParams({ name: view.name })}`);
    watch(key);
}

form.addEventListener("submit", (event) => {
    event.preventDefault();
    watch(String(new FormData(form).get("key")).trim());
});
addEventListener("hashchange", () => location.reload());
begin();
