// The picture that the page shows, and how it differs from one before.

/** The time for each condition to be met, in milliseconds. */
export const timeout = 60_000;

export function check(is, message) {
    if (!is) throw new Error(message);
}

/** Has the page keep functions for its pictures. */
export function prepare(page) {
    return page.addInitScript(() => {
        /** Returns the pixels that are shown: 32 bits each. */
        const read = () => {
            const shown = document.querySelector("hawser-view").shadowRoot.querySelector("canvas");
            const copy = new OffscreenCanvas(shown.width, shown.height);
            const context = copy.getContext("2d");
            context.drawImage(shown, 0, 0);
            const { data, width } = context.getImageData(0, 0, copy.width, copy.height);
            return { pixels: new Uint32Array(data.buffer), width };
        };

        /** Returns the mean similarity of squares of 8 x 8 pixels (Wang et al. 2004), of all and of those with something drawn. */
        const similarity = (one, other, width) => {
            const luma = (pixel) =>
                0.299 * (pixel & 255) + 0.587 * ((pixel >> 8) & 255) + 0.114 * ((pixel >> 16) & 255);
            const [C1, C2] = [(0.01 * 255) ** 2, (0.03 * 255) ** 2];
            const all = { sum: 0, count: 0 };
            const drawn = { sum: 0, count: 0 };
            for (let row = 0; row + 8 <= one.length / width; row += 4) {
                for (let column = 0; column + 8 <= width; column += 4) {
                    let [a, b, aa, bb, ab, isDrawn] = [0, 0, 0, 0, 0, false];
                    for (let at = 0; at < 64; at++) {
                        const pixel = (row + (at >> 3)) * width + column + (at & 7);
                        const [x, y] = [luma(one[pixel]), luma(other[pixel])];
                        a += x / 64;
                        b += y / 64;
                        aa += (x * x) / 64;
                        bb += (y * y) / 64;
                        ab += (x * y) / 64;
                        isDrawn ||= one[pixel] !== one[0] || other[pixel] !== other[0];
                    }
                    const ssim =
                        ((2 * a * b + C1) * (2 * (ab - a * b) + C2)) /
                        ((a * a + b * b + C1) * (aa - a * a + bb - b * b + C2));
                    for (const mean of isDrawn ? [all, drawn] : [all]) {
                        mean.sum += ssim;
                        mean.count += 1;
                    }
                }
            }
            return { all: all.sum / all.count, drawn: drawn.sum / Math.max(drawn.count, 1) };
        };

        let previous;
        let remembered;
        let newest;
        window.look = () => {
            newest = read();
            const { pixels, width } = newest;
            const before = remembered?.pixels ?? pixels;
            const share = (is) =>
                pixels.reduce((count, pixel, at) => count + (is(pixel, at) ? 1 : 0), 0) / pixels.length;
            return {
                width,
                drawn: share((pixel) => pixel !== pixels[0]),
                colors: new Set(pixels).size,
                changed: share((pixel, at) => pixel !== before[at]),
                moved: share((pixel, at) => (pixel === pixels[0]) !== (before[at] === before[0])),
            };
        };
        window.remember = () => {
            [previous, remembered] = [remembered, newest];
        };
        window.compare = () => similarity(previous.pixels, remembered.pixels, remembered.width);
    });
}

/**
 * Returns the picture that the page shows: the number of its colours, and the shares of its pixels that are drawn, that differ
 * from the picture remembered last, and that belong to the outline of one of these pictures alone.
 */
export function look(page) {
    return page.evaluate(() => window.look());
}

/** Looks until a picture is as expected, and remembers it. */
export async function see(page, name, is) {
    const end = Date.now() + timeout;
    for (;;) {
        const seen = await look(page);
        if (is(seen)) {
            await page.evaluate(() => window.remember());
            console.log(name, seen);
            return seen;
        }
        check(Date.now() < end, `${name}: not seen in ${JSON.stringify(seen)}`);
        await page.waitForTimeout(100);
    }
}

/** Returns whether a picture is neither blank nor without background. */
export function isPerson(seen) {
    return seen.drawn > 0.03 && seen.drawn < 0.95 && seen.colors > 200;
}
