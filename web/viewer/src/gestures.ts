// Pointers and wheels: one finger or button walks around, two fingers, the other button or Shift pan, a pinch or a
// wheel changes the distance.

/** How the viewer moves. */
export interface Motion {
    /** Walks around by angles to the left and upwards in radians. */
    turn(yaw: number, pitch: number): void;
    /** Walks to the right and upwards, by shares of the picture's width. */
    pan(right: number, up: number): void;
    /** Multiplies the distance. */
    dolly(factor: number): void;
}

/** The turn for each pixel that is dragged, in radians. */
const TURN = 0.008;

/** The exponent of the distance for each step of a wheel. */
const WHEEL = 0.001;

/** The bit of the secondary button. */
const SECONDARY = 2;

/** Has what is done on an element move the viewer. */
export function follow(element: HTMLElement, motion: Motion): void {
    const pointers = new Map<number, PointerEvent>();
    element.addEventListener("pointerdown", (event) => {
        element.setPointerCapture(event.pointerId);
        pointers.set(event.pointerId, event);
    });
    element.addEventListener("lostpointercapture", (event) => pointers.delete(event.pointerId));
    element.addEventListener("pointermove", (event) => {
        if (!pointers.has(event.pointerId)) return;
        const before = hold(pointers);
        pointers.set(event.pointerId, event);
        const after = hold(pointers);
        const [right, down] = [after.x - before.x, after.y - before.y];
        if (pointers.size > 1 || event.shiftKey || event.buttons & SECONDARY) {
            motion.pan(-right / element.clientWidth, down / element.clientWidth);
        } else {
            motion.turn(-TURN * right, -TURN * down);
        }
        if (before.spread > 0 && after.spread > 0) motion.dolly(before.spread / after.spread);
    });
    element.addEventListener("contextmenu", (event) => event.preventDefault());
    element.addEventListener(
        "wheel",
        (event) => {
            event.preventDefault();
            motion.dolly(Math.exp(WHEEL * event.deltaY));
        },
        { passive: false },
    );
}

/** Returns the middle of the pointers and their mean distance from it. */
function hold(pointers: Map<number, PointerEvent>): { x: number; y: number; spread: number } {
    const all = [...pointers.values()];
    const mean = (of: (pointer: PointerEvent) => number): number =>
        all.reduce((sum, pointer) => sum + of(pointer), 0) / all.length;
    const [x, y] = [mean((pointer) => pointer.clientX), mean((pointer) => pointer.clientY)];
    return { x, y, spread: mean((pointer) => Math.hypot(pointer.clientX - x, pointer.clientY - y)) };
}
