// Watches the demonstration in the Chromium of the system, and disturbs its network: node demo.js ADDRESS FOLDER. Fails if a
// side does not show a person who moves, or if a cut cable does not stop the left side alone. Leaves screenshots in the folder.

import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const [, , address, folder] = process.argv;
const PROGRAMS = ["/usr/bin/chromium", "/usr/bin/chromium-browser"];
/** The time for each condition to be met, in milliseconds. */
const timeout = 60_000;
const [LEFT, RIGHT] = ["single", "hawser"];

const browser = await chromium.launch({
    executablePath: PROGRAMS.find((program) => existsSync(program)),
    args: ["--no-sandbox", "--disable-gpu"],
});

/** Returns the picture of a side: the share of its pixels that are drawn, the number of its colours, and a sum of all. */
function look(page, side) {
    return page.evaluate((side) => {
        const shown = document.getElementById(side).shadowRoot.querySelector("canvas");
        const copy = new OffscreenCanvas(shown.width, shown.height);
        const context = copy.getContext("2d");
        context.drawImage(shown, 0, 0);
        const pixels = new Uint32Array(context.getImageData(0, 0, copy.width, copy.height).data.buffer);
        return {
            drawn: pixels.filter((pixel) => pixel !== pixels[0]).length / pixels.length,
            colors: new Set(pixels).size,
            sum: pixels.reduce((sum, pixel) => (31 * sum + pixel) | 0, 0),
        };
    }, side);
}

/** Looks at a side until its picture is as expected, and returns it. */
async function see(page, side, is, message) {
    const end = Date.now() + timeout;
    for (;;) {
        const seen = await look(page, side);
        if (is(seen)) return seen;
        check(Date.now() < end, `${side}: ${message}: ${JSON.stringify(seen)}`);
        await page.waitForTimeout(100);
    }
}

/** Waits until a side has shown so many frames, and returns how many it has. */
async function shows(page, side, frames) {
    const total = ([side, frames]) => {
        const total = document.getElementById(side).figures?.total ?? 0;
        return total >= frames && total;
    };
    const found = await page.waitForFunction(total, [side, frames], { timeout });
    return found.jsonValue();
}

/** Presses a button, and waits until its state is that. */
async function press(page, name, isPressed) {
    await page.getByRole("button", { name }).click();
    await page.getByRole("button", { name, pressed: isPressed }).waitFor({ timeout });
}

function check(is, message) {
    if (!is) throw new Error(message);
}

async function watch(page) {
    await page.goto(address);
    for (const side of [LEFT, RIGHT]) {
        const isPerson = (seen) => seen.drawn > 0.03 && seen.drawn < 0.95 && seen.colors > 200;
        const first = await see(page, side, isPerson, "the picture is blank, or has few colours");
        await see(page, side, (seen) => seen.sum !== first.sum, "the picture is still");
        console.log(side, first, await shows(page, side, 10));
    }
    await page.screenshot({ path: `${folder}/live.png` });

    await press(page, "Cut the cable", true);
    // The page says so after seconds without a frame.
    const isStill = (side) =>
        document.getElementById(side).shadowRoot.querySelector("[role=status]").textContent !== "";
    await page.waitForFunction(isStill, LEFT, { timeout });
    const still = await look(page, LEFT);
    const before = { left: await shows(page, LEFT, 1), right: await shows(page, RIGHT, 1) };
    const right = await shows(page, RIGHT, before.right + 30);
    check((await look(page, LEFT)).sum === still.sum, "the left side goes on over a cut cable");
    console.log("cut", before, right);
    await page.screenshot({ path: `${folder}/cut.png` });
    await press(page, "Cut the cable", false);
    await shows(page, LEFT, before.left + 10);

    for (const name of ["Add jitter", "Add an upload"]) {
        await press(page, name, true);
        await shows(page, RIGHT, (await shows(page, RIGHT, 1)) + 30);
        const rates = await page.locator("output").allTextContents();
        console.log(name, rates);
        await press(page, name, false);
    }
}

try {
    const page = await browser.newPage({ viewport: { width: 1000, height: 720 } });
    const errors = [];
    page.on("pageerror", (error) => errors.push(error.message));
    // A session that fails is asked for again, and Chromium reports it.
    const isOfNetwork = (text) => /net::ERR|WebTransport/.test(text);
    page.on("console", (message) => {
        if (message.type() === "error" && !isOfNetwork(message.text())) errors.push(message.text());
    });
    try {
        await watch(page);
        check(errors.length === 0, "the page has errors");
    } catch (error) {
        await page.screenshot({ path: `${folder}/failed.png` });
        const states = await page.evaluate(() =>
            [...document.querySelectorAll("hawser-view")].map((view) => view.shadowRoot.textContent),
        );
        throw new Error(`${error.message}; ${states.join("; ")}; ${errors.join("; ")}`);
    }
} finally {
    await browser.close();
}
