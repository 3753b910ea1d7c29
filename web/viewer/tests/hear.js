// Hears a broadcast in the Chromium of the system: node hear.js ADDRESS. Fails if nothing is heard, or the sound cannot be
// switched off. Prints how far sound and picture are apart, which depends on how busy the machine is.

import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const [, , address] = process.argv;
const PROGRAMS = ["/usr/bin/chromium", "/usr/bin/chromium-browser"];
/** The time for each condition to be met, in milliseconds. */
const timeout = 60_000;

const browser = await chromium.launch({
    executablePath: PROGRAMS.find((program) => existsSync(program)),
    args: ["--no-sandbox", "--disable-gpu"],
});

const heard = () => document.querySelector("hawser-view").sound.figures;

try {
    const page = await browser.newPage({ viewport: { width: 640, height: 480 } });
    const errors = [];
    page.on("pageerror", (error) => errors.push(error.message));
    try {
        await page.goto(address);
        await page.getByRole("button", { name: "Sound on" }).waitFor({ timeout });
        await page.getByRole("application").press("m");
        await page.getByRole("button", { name: "Sound off" }).waitFor({ timeout });
        // The recording has a click in each second.
        await page.waitForFunction(
            () => {
                const figures = document.querySelector("hawser-view").sound.figures;
                return figures && figures.packets > 100 && figures.loudest > 0.2 && figures.apartMs !== 0;
            },
            undefined,
            { timeout, polling: 100 },
        );
        console.log(await page.evaluate(heard));
        await page.getByRole("button", { name: "Sound off" }).click();
        await page.getByRole("button", { name: "Sound on" }).waitFor({ timeout });
        if (errors.length > 0) throw new Error("the page has errors");
    } catch (error) {
        const figures = await page.evaluate(heard).catch(() => undefined);
        throw new Error(`${error.message}; ${JSON.stringify(figures)}; ${errors.join("; ")}`);
    }
} finally {
    await browser.close();
}
