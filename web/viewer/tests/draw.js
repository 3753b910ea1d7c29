// Has the decoder in WASM open, decode and draw the frame of a file, from two places: node draw.js CASE.json PICTURES.
// web/decoder/tests/picture.rs compares the pictures with those of the same crate on the machine itself.

import { readFile, writeFile } from "node:fs/promises";

const [, , input, output] = process.argv;
const { secret, epochs, announcement, objects, width, height, turn } = JSON.parse(await readFile(input, "utf8"));
const wasm = await readFile(new URL("../public/decoder.wasm", import.meta.url));
const { instance } = await WebAssembly.instantiate(wasm);
const decoder = instance.exports;

function write(bytes) {
    const at = decoder.input(bytes.length);
    new Uint8Array(decoder.memory.buffer).set(bytes, at);
}

function draw() {
    const at = decoder.draw();
    return Buffer.from(decoder.memory.buffer.slice(at, at + 4 * width * height));
}

const head = Buffer.alloc(1 + 6 * epochs.length);
head.writeUInt8(epochs.length);
epochs.forEach(([alias, epoch], at) => {
    head.writeUInt32BE(alias, 1 + 6 * at);
    head.writeUInt16BE(epoch, 5 + 6 * at);
});
write(Buffer.concat([Buffer.from(secret, "hex"), head, Buffer.from(announcement, "hex")]));
if (!decoder.open()) throw new Error("the announcement is refused");
decoder.resize(width, height);
for (const object of objects) {
    write(Buffer.from(object, "hex"));
    decoder.take(1);
}
if (!decoder.decode(2)) throw new Error("no frame");
const first = draw();
decoder.turn(...turn);
await writeFile(output, Buffer.concat([first, draw()]));
