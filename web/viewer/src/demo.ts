// The page of `hawser lab demo`: a person over one path and over several, and buttons that disturb the network. The secret of
// the broadcast is in the fragment of the address.

import { HawserView } from "./element";

/** The disturbances, as `lab/src/experiments/demo/disturbances.rs` takes them. */
type Disturbances = Record<string, boolean>;

/** The time between two updates of the frame rates, in milliseconds. */
const UPDATE = 500;

customElements.define("hawser-view", HawserView);

const views = [...document.querySelectorAll("hawser-view")] as HawserView[];
const buttons = [...document.querySelectorAll("button")];
const sentence = document.querySelector("p") as HTMLParagraphElement;

function show(disturbances: Disturbances): void {
    for (const button of buttons) button.ariaPressed = String(disturbances[button.name] ?? false);
}

/** Asks for the disturbances, or changes them, and shows those that there are then. */
async function disturb(changed?: Disturbances): Promise<void> {
    const headers = { "Content-Type": "application/json" };
    try {
        const request = changed && { method: "POST", headers, body: JSON.stringify(changed) };
        const answer = await fetch("disturbances.json", { cache: "no-store", ...request });
        if (!answer.ok) throw new Error(await answer.text());
        show(await answer.json());
        sentence.textContent = "";
    } catch (error) {
        sentence.textContent = `The network does not answer: ${(error as Error).message} Does the demonstration still run?`;
    }
}

function press(pressed: HTMLButtonElement): void {
    const state = (button: HTMLButtonElement): boolean => (button.ariaPressed === "true") !== (button === pressed);
    disturb(Object.fromEntries(buttons.map((button) => [button.name, state(button)])));
}

function update(): void {
    for (const view of views) {
        const output = document.querySelector(`output[for=${view.id}]`) as HTMLOutputElement;
        output.value = view.figures ? `${view.figures.frames} frames per second` : "";
    }
}

function begin(): void {
    const key = new URLSearchParams(location.hash.slice(1)).get("key");
    if (key === null) {
        sentence.textContent = "The address is not complete: open the whole one that the demonstration has printed.";
        return;
    }
    for (const view of views) {
        view.name = view.id;
        view.secret = key;
    }
    setInterval(update, UPDATE);
    disturb();
}

for (const button of buttons) button.addEventListener("click", () => press(button));
begin();
