// Watches a broadcast in the Chromium of the system: node watch.js ADDRESS FOLDER. Fails if the picture is blank or still, or
// does not turn with the viewer. Leaves screenshots in the folder, and prints what the page measured.

import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const [, , address, folder] = process.argv;
const PROGRAMS = ["/usr/bin/chromium", "/usr/bin/chromium-browser"];
/** The time for each condition to be met, in milliseconds. */
const timeout = 60_000;

const browser = await chromium.launch({
    executablePath: PROGRAMS.find((program) => existsSync(program)),
    args: ["--no-sandbox", "--disable-gpu"],
});

/**
 * Returns the picture that the page shows: the number of its colours, and the shares of its pixels that are drawn, that differ
 * from the picture remembered last, and that belong to the outline of one of these pictures alone.
 */
function look(page) {
    return page.evaluate(() => {
        const shown = document.querySelector("hawser-view").shadowRoot.querySelector("canvas");
        const copy = new OffscreenCanvas(shown.width, shown.height);
        const context = copy.getContext("2d");
        context.drawImage(shown, 0, 0);
        const pixels = new Uint32Array(context.getImageData(0, 0, copy.width, copy.height).data.buffer);
        const before = window.remembered ?? pixels;
        window.newest = pixels;
        const share = (is) => pixels.reduce((count, pixel, at) => count + (is(pixel, at) ? 1 : 0), 0) / pixels.length;
        return {
            drawn: share((pixel) => pixel !== pixels[0]),
            colors: new Set(pixels).size,
            changed: share((pixel, at) => pixel !== before[at]),
            moved: share((pixel, at) => (pixel === pixels[0]) !== (before[at] === before[0])),
        };
    });
}

/** Looks until a picture is as expected, and remembers it. */
async function see(page, name, is, message) {
    const end = Date.now() + timeout;
    for (;;) {
        const seen = await look(page);
        if (is(seen)) {
            await page.evaluate(() => {
                window.remembered = window.newest;
            });
            console.log(name, seen);
            return seen;
        }
        check(Date.now() < end, `${message}: ${JSON.stringify(seen)}`);
        await page.waitForTimeout(100);
    }
}

function check(is, message) {
    if (!is) throw new Error(message);
}

async function watch(page) {
    await page.goto(address);
    const isPerson = (seen) => seen.drawn > 0.03 && seen.drawn < 0.95 && seen.colors > 200;
    await see(page, "first picture", isPerson, "the picture is blank, or has no background or few colours");
    await page.screenshot({ path: `${folder}/first.png` });
    const second = await see(page, "another one", (seen) => seen.changed > 0.001, "the picture is still");
    const hasNoSentence = () =>
        document.querySelector("hawser-view").shadowRoot.querySelector("[role=status]").textContent === "";
    await page.waitForFunction(hasNoSentence, undefined, { timeout });

    for (let step = 0; step < 10; step++) await page.keyboard.press("ArrowRight");
    await page.keyboard.press("i");
    const isTurned = (seen) => seen.moved > Math.max(0.02, second.moved) && seen.drawn > 0.03;
    await see(page, "from another side", isTurned, "the picture does not turn");
    await page.screenshot({ path: `${folder}/turned.png` });
    console.log(await page.evaluate(() => document.querySelector("hawser-view").figures));
}

/** Opens the page with another secret. */
async function watchWithoutSecret(page) {
    await page.goto(address.replace(/key=[0-9a-f]+/, `key=${"0".repeat(64)}`));
    await page.getByRole("status").filter({ hasText: "not that of this broadcast" }).waitFor({ timeout });
}

try {
    const page = await browser.newPage({ viewport: { width: 640, height: 480 } });
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
        const state = await page.evaluate(() => document.querySelector("hawser-view")?.shadowRoot.textContent);
        throw new Error(`${error.message}; ${state}; ${errors.join("; ")}`);
    }
    await watchWithoutSecret(await browser.newPage());
} finally {
    await browser.close();
}
