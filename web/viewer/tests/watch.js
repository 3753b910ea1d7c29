// Watches a broadcast in the Chromium of the system: node watch.js ADDRESS FOLDER [TRANSPORT [OPTION...]]. Draws it in WASM and by
// WebGL. Fails if a picture is blank or still, does not turn with the viewer, or is not that of the other renderer, or if a
// control cannot be used. With a transport, such as `WebSocket`, draws in WASM only, and fails if the transport is another one.
// Leaves screenshots in the folder, and prints what the page measured. The options are those of Chromium.

import { existsSync, readFileSync } from "node:fs";
import { chromium } from "playwright-core";
import { check, isPerson, prepare, see, timeout } from "./picture.js";

const [, , address, folder, transport = "", ...options] = process.argv;
const PROGRAMS = ["/usr/bin/chromium", "/usr/bin/chromium-browser"];
const WITHOUT_GPU = ["--disable-gpu"];
/** WebGL on the processor. */
const SOFTWARE_WEBGL = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"];
const AXE = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const CONTROLS = ["Pause", "Reset", "Snapshot", "Figures", "Full screen"];
/** The least similarity of the pictures of a frame by both renderers. */
const MIN_SSIM = 0.95;

/** Opens the page in a browser, and fails if it has errors. */
async function open(args, visit) {
    const executablePath = PROGRAMS.find((program) => existsSync(program));
    const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", ...args, ...options] });
    const page = await browser.newPage({ viewport: { width: 640, height: 480 } });
    const errors = [];
    page.on("pageerror", (error) => errors.push(error.message));
    // A session that fails is asked for again, and Chromium reports it.
    const isOfNetwork = (text) => /net::ERR|WebTransport|WebSocket/.test(text);
    page.on("console", (message) => {
        if (message.type() === "error" && !isOfNetwork(message.text())) errors.push(message.text());
    });
    try {
        await prepare(page);
        await page.goto(address);
        await visit(page, browser);
        check(errors.length === 0, "the page has errors");
    } catch (error) {
        await page.screenshot({ path: `${folder}/failed.png` });
        const state = await page.evaluate(() => document.querySelector("hawser-view")?.shadowRoot.textContent);
        throw new Error(`${error.message}; ${state}; ${errors.join("; ")}`);
    } finally {
        await browser.close();
    }
}

/** Waits until a renderer draws. */
function isDrawnBy(page, renderer) {
    const is = (renderer) => document.querySelector("hawser-view").figures?.renderer === renderer;
    return page.waitForFunction(is, renderer, { timeout });
}

/** Has a renderer draw. */
async function draw(page, renderer) {
    await page.evaluate((name) => document.querySelector("hawser-view").setAttribute("renderer", name), renderer);
    await isDrawnBy(page, renderer);
}

async function watch(page, renderer) {
    await see(page, `first picture, ${renderer}`, isPerson);
    await page.screenshot({ path: `${folder}/${renderer}-first.png` });
    const second = await see(page, "another one", (seen) => seen.changed > 0.001);
    const hasNoSentence = () =>
        document.querySelector("hawser-view").shadowRoot.querySelector("[role=status]").textContent === "";
    await page.waitForFunction(hasNoSentence, undefined, { timeout });

    for (let step = 0; step < 10; step++) await page.keyboard.press("ArrowRight");
    await see(page, "from another side", (seen) => seen.moved > Math.max(0.02, second.moved) && seen.drawn > 0.03);
    await page.screenshot({ path: `${folder}/${renderer}-turned.png` });
    await page.keyboard.press("0");
    console.log(await page.evaluate(() => document.querySelector("hawser-view").figures));
}

/** Looks at what the page says of the way to the server. */
async function travel(page) {
    const isBy = (transport) => document.querySelector("hawser-view").figures?.transport.endsWith(transport);
    await page.waitForFunction(isBy, transport, { timeout });
    const isSecure = await page.evaluate(() => isSecureContext);
    check((await page.getByRole("note").isVisible()) !== isSecure, "only a page of plain HTTP says so");
}

/** Keeps the frame that is shown. */
async function pause(page) {
    await page.keyboard.press("p");
    const isStill = () => document.querySelector("hawser-view").figures.frames === 0;
    await page.waitForFunction(isStill, undefined, { timeout });
}

/** Has both renderers draw one frame, from two places. */
async function compare(page) {
    await pause(page);
    for (const [place, ...turns] of [["front"], ["side", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown"]]) {
        for (const key of turns) await page.keyboard.press(key);
        for (const renderer of ["wasm", "webgl"]) {
            await draw(page, renderer);
            await see(page, `${place}, ${renderer}`, isPerson);
            await page.screenshot({ path: `${folder}/${place}-${renderer}.png` });
        }
        const similar = await page.evaluate(() => window.compare());
        console.log(`${place}: structural similarity`, similar);
        check(similar.all >= MIN_SSIM, `the pictures of both renderers differ: ${JSON.stringify(similar)}`);
    }
}

/** Walks about, while the picture is paused. */
async function walk(page) {
    await pause(page);
    const first = await see(page, "paused", isPerson);
    const motions = {
        "keys pan": () => page.keyboard.press("Shift+ArrowRight"),
        "keys change the distance": () => page.keyboard.press("-"),
        "a drag turns": () => drag(page),
        "a drag with Shift pans": () => drag(page, "left", "Shift"),
        "a drag with the other button pans": () => drag(page, "right"),
        "a wheel changes the distance": () => page.mouse.wheel(0, 300),
        "two fingers pan and change the distance": () => pinch(page),
    };
    for (const [name, move] of Object.entries(motions)) {
        await move();
        await see(page, name, (seen) => seen.moved > 0.01);
        await page.keyboard.press("0");
        await see(page, "back", (seen) => seen.drawn === first.drawn && seen.colors === first.colors);
    }
    await page.keyboard.press("p");
    await see(page, "not paused", (seen) => seen.changed > 0.001);
}

async function drag(page, button, key) {
    if (key) await page.keyboard.down(key);
    await page.mouse.move(320, 240);
    await page.mouse.down({ button });
    await page.mouse.move(380, 270, { steps: 5 });
    await page.mouse.up({ button });
    if (key) await page.keyboard.up(key);
}

async function pinch(page) {
    const session = await page.context().newCDPSession(page);
    const touch = (type, ...columns) =>
        session.send("Input.dispatchTouchEvent", { type, touchPoints: columns.map((x, id) => ({ x, y: 240, id })) });
    await touch("touchStart", 280, 360);
    for (let step = 1; step <= 10; step++) await touch("touchMove", 280 + 4 * step, 360 + 8 * step);
    await touch("touchEnd");
    await session.detach();
}

/** Uses the controls by keyboard, and looks through the page as programs do that read it aloud. */
async function control(page) {
    await page.keyboard.press("i");
    const overlay = page.locator("hawser-view pre");
    await overlay.filter({ hasText: /frames\/s/ }).waitFor({ timeout });
    console.log(await overlay.textContent());

    for (const name of CONTROLS) {
        await page.keyboard.press("Tab");
        const reached = await page.evaluate(() => document.activeElement.shadowRoot.activeElement?.textContent);
        check(reached === name, `Tab reaches ${reached} instead of ${name}`);
        await page.getByRole("button", { name }).waitFor({ timeout });
    }
    const download = page.waitForEvent("download", { timeout });
    await page.keyboard.press("s");
    const picture = readFileSync(await (await download).path());
    check(picture.subarray(1, 4).toString() === "PNG", "the snapshot is no PNG");

    await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => window.axe.run());
    const isGrave = ({ impact }) => impact === "serious" || impact === "critical";
    for (const { id, impact, help } of violations) console.log("axe:", impact, id, help);
    check(!violations.some(isGrave), `axe: ${JSON.stringify(violations.filter(isGrave))}`);
    await page.keyboard.press("i");
    await page.locator("hawser-view #stage").focus();
}

/** Takes the context of WebGL away. */
async function loseContext(browser) {
    const session = await browser.newBrowserCDPSession();
    await session.send("Browser.crashGpuProcess");
}

/** Opens the page with another secret. */
async function watchWithoutSecret(page) {
    await page.goto(address.replace(/key=[0-9a-f]+/, `key=${"0".repeat(64)}`));
    await page.getByRole("status").filter({ hasText: "not that of this broadcast" }).waitFor({ timeout });
}

await open(WITHOUT_GPU, async (page, browser) => {
    await isDrawnBy(page, "wasm");
    await watch(page, "wasm");
    await travel(page);
    if (transport === "") {
        await control(page);
        await walk(page);
    }
    await watchWithoutSecret(await browser.newPage());
});
if (transport === "") {
    await open(SOFTWARE_WEBGL, async (page, browser) => {
        // Software is not chosen.
        await isDrawnBy(page, "wasm");
        await draw(page, "webgl");
        await watch(page, "webgl");
        await compare(page);
        await loseContext(browser);
        await isDrawnBy(page, "wasm");
        await see(page, "after the context was lost", isPerson);
    });
}
