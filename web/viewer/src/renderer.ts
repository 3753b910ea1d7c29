// The two ways to draw: by WebGL2 where a GPU does that, and else by the native renderer in WASM.

import type { Decoder } from "./decoder";
import type { Choice } from "./messages";

/** Draws the newest frame of the decoder on a canvas. */
export interface Renderer {
    readonly kind: "webgl" | "wasm";
    /** The device that draws. */
    readonly device: string;
    /** The most pixels of a picture. */
    readonly maxPixels: number;
    resize(width: number, height: number): void;
    /** Draws a picture; `isNew`: of a frame that was not drawn before. Returns whether it is shown. */
    draw(isNew: boolean): boolean;
    dispose(): void;
}

/** The devices that are the processor. */
const SOFTWARE = /swiftshader|llvmpipe|softpipe|software|basic render/i;

/** Creates the renderer that is chosen, or the one that is better here. `lost` is called if it ceases to draw. */
export async function createRenderer(
    choice: Choice,
    canvas: OffscreenCanvas,
    decoder: Decoder,
    lost: () => void,
): Promise<Renderer> {
    const device = choice === "wasm" ? undefined : webGlDevice(choice === "webgl");
    if (device === undefined) return new Wasm(canvas, decoder);
    // A machine without a GPU does not load it.
    const { WebGl } = await import("./webgl");
    return new WebGl(canvas, decoder, device, lost);
}

/** Returns the device that draws WebGL2; `undefined` if there is none, or only the processor and that is not wanted. */
function webGlDevice(isSoftwareWanted: boolean): string | undefined {
    const options = { failIfMajorPerformanceCaveat: !isSoftwareWanted };
    const context = new OffscreenCanvas(1, 1).getContext("webgl2", options);
    if (!context) return undefined;
    const info = context.getExtension("WEBGL_debug_renderer_info");
    const device = String(context.getParameter(info ? info.UNMASKED_RENDERER_WEBGL : context.RENDERER));
    context.getExtension("WEBGL_lose_context")?.loseContext();
    return isSoftwareWanted || !SOFTWARE.test(device) ? device : undefined;
}

/** Has the decoder draw the picture of the native renderer. */
class Wasm implements Renderer {
    readonly kind = "wasm";
    readonly device = "the processor";
    /** A processor draws as many 30 times a second. */
    readonly maxPixels = 640 * 480;
    #decoder: Decoder;
    #canvas: OffscreenCanvas;
    #context: OffscreenCanvasRenderingContext2D;

    constructor(canvas: OffscreenCanvas, decoder: Decoder) {
        this.#decoder = decoder;
        this.#canvas = canvas;
        this.#context = canvas.getContext("2d", { alpha: false }) as OffscreenCanvasRenderingContext2D;
    }

    resize(width: number, height: number): void {
        [this.#canvas.width, this.#canvas.height] = [width, height];
    }

    draw(): boolean {
        const picture = this.#decoder.draw();
        if (picture) this.#context.putImageData(picture, 0, 0);
        return picture !== undefined;
    }

    dispose(): void {}
}
