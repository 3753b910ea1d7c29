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
 * Returns the picture that the page shows: the number of its colours, and the shares of its pixels that are drawn, that have
 * changed since the picture before, and that belong to the outline of one of these pictures alone.
 */
function look(page) {
    return page.evaluate(() => {
        const shown = document.querySelector("hawser-view").shadowRoot.querySelector("canvas");
        const copy = new OffscreenCanvas(shown.width, shown.height);
        const context = copy.getContext("2d");
        context.drawImage(shown, 0, 0);
        const pixels = new Uint32Array(context.getImageData(0, 0, copy.width, copy.height).data.buffer);
        const before = window.before;
        window.before = pixels;
        const share = (is) => pixels.reduce((count, pixel, at) => count + (is(pixel, at) ? 1 : 0), 0) / pixels.length;
        return {
            drawn: share((pixel) => pixel !== pixels[0]),
            colors: new Set(pixels).size,
            changed: before ? share((pixel, at) => pixel !== before[at]) : 1,
            moved: before ? share((pixel, at) => (pixel === pixels[0]) !== (before[at] === before[0])) : 1,
        };
    });
}

function check(is, message) {
    if (!is) throw new Error(message);
}

async function watch(page) {
    await page.goto(address);
    const frames = (count) =>
        page.waitForFunction((n) => document.querySelector("hawser-view").figures?.total >= n, count, { timeout });
    await frames(5);
    const first = await look(page);
    console.log("first picture", first);
    await page.screenshot({ path: `${folder}/first.png` });
    check(first.drawn > 0.03 && first.drawn < 0.95, "the picture is blank, or has no background");
    check(first.colors > 200, "the picture has few colours");
    const sentence = await page.evaluate(
        () => document.querySelector("hawser-view").shadowRoot.querySelector("[role=status]").textContent,
    );
    check(sentence === "", `a sentence hides the picture: ${sentence}`);

    await frames(15);
    const second = await look(page);
    console.log("ten frames later", second);
    check(second.changed > 0.001, "the picture is still");

    for (let step = 0; step < 10; step++) await page.keyboard.press("ArrowRight");
    await page.keyboard.press("i");
    const { total } = await page.evaluate(() => document.querySelector("hawser-view").figures);
    await frames(total + 5);
    const turned = await look(page);
    console.log("from another side", turned);
    check(turned.moved > 0.02 && turned.moved > second.moved, "the picture does not turn");
    check(turned.drawn > 0.03, "the picture is blank from another side");
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
    page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
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
