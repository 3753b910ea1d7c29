// Draws frames by WebGL2: a view as a surface through its pixels, which the vertex shader unprojects from the textures of
// its depths and colours; other points as squares, as media/cloud/src/render.rs does.

import {
    BufferAttribute,
    BufferGeometry,
    Camera,
    DataTexture,
    DoubleSide,
    GLSL3,
    InterleavedBuffer,
    InterleavedBufferAttribute,
    Matrix4,
    Mesh,
    Points,
    RawShaderMaterial,
    RedIntegerFormat,
    RGBFormat,
    Scene,
    UnsignedShortType,
    WebGLRenderer,
} from "three";
import { type Decoder, type Part, POINT_BYTES, type PointsPart, type ViewPart } from "./decoder";
import type { Renderer } from "./renderer";

/** The colour without points, of the page and the native renderer. */
const BACKGROUND = 0x202020;

/** The largest side of a point in pixels. */
const MAX_SIDE = 48;

const VIEW_VERTEX = `
precision highp float;
precision highp usampler2D;
uniform mat4 toClip;
uniform usampler2D depth;
uniform sampler2D color;
out vec3 shown;

void main() {
    int columns = textureSize(depth, 0).x;
    ivec2 pixel = ivec2(gl_VertexID % columns, gl_VertexID / columns);
    float z = float(texelFetch(depth, pixel, 0).r);
    gl_Position = toClip * vec4(vec2(pixel) * z, z, 1.0);
    shown = texelFetch(color, pixel, 0).rgb;
}`;

const VIEW_FRAGMENT = `
precision mediump float;
in vec3 shown;
out vec4 pixel;

void main() {
    pixel = vec4(shown, 1.0);
}`;

// The side is in pixels at a distance of 1 mm.
const POINTS_VERTEX = `
precision highp float;
uniform mat4 toClip;
uniform float side;
uniform float focal;
in vec4 xy;
in vec4 zrg;
in float b;
out vec3 shown;
flat out float slope;

float coordinate(vec2 bytes) {
    float value = bytes.x + 256.0 * bytes.y;
    return value < 32768.0 ? value : value - 65536.0;
}

void main() {
    gl_Position = toClip * vec4(coordinate(xy.xy), coordinate(xy.zw), coordinate(zrg.xy), 1.0);
    gl_PointSize = clamp(ceil(side / gl_Position.w), 1.0, ${MAX_SIDE}.0);
    slope = 2.0 * gl_PointSize / focal;
    shown = vec3(zrg.zw, b) / 255.0;
}`;

// The depth grows from the middle to the corners, so that each pixel shows the point whose middle is nearest. The middle's
// is 1 - near / distance.
const POINTS_FRAGMENT = `
precision highp float;
in vec3 shown;
flat in float slope;
out vec4 pixel;

void main() {
    vec2 offset = gl_PointCoord - 0.5;
    float further = slope * dot(offset, offset);
    gl_FragDepth = mix(gl_FragCoord.z, 1.0, further / (1.0 + further));
    pixel = vec4(shown, 1.0);
}`;

/** A part of a frame on the GPU. */
interface Drawn {
    readonly object: Mesh | Points;
    /** Whether it can take another part in place of this one. */
    fits(part: Part): boolean;
    /** Uploads a part. */
    take(part: Part): void;
    /** Prepares to draw with a matrix, which is valid now, for a picture of so many columns. */
    place(toClip: Float32Array, columns: number): void;
    dispose(): void;
}

export class WebGl implements Renderer {
    readonly kind = "webgl";
    readonly maxPixels = Number.POSITIVE_INFINITY;
    #decoder: Decoder;
    #three: WebGLRenderer;
    #scene = new Scene();
    #camera = new Camera();
    #drawn: Drawn[] = [];
    #columns = 1;

    /** `lost` is called if the GPU takes the context away. Throws an error if there is none. */
    constructor(
        canvas: OffscreenCanvas,
        decoder: Decoder,
        readonly device: string,
        lost: () => void,
    ) {
        this.#decoder = decoder;
        this.#three = new WebGLRenderer({ canvas, antialias: true });
        this.#three.setClearColor(BACKGROUND);
        this.#three.sortObjects = false;
        canvas.addEventListener("webglcontextlost", lost);
    }

    resize(width: number, height: number): void {
        this.#columns = width;
        this.#three.setSize(width, height, false);
    }

    draw(isNew: boolean): boolean {
        if (isNew) this.#take(this.#decoder.parts());
        for (const [number, drawn] of this.#drawn.entries()) {
            const toClip = this.#decoder.toClip(number);
            drawn.object.visible = toClip !== undefined;
            if (toClip) drawn.place(toClip, this.#columns);
        }
        this.#three.render(this.#scene, this.#camera);
        return true;
    }

    dispose(): void {
        this.#take([]);
        this.#three.dispose();
    }

    #take(parts: Part[]): void {
        for (const drawn of this.#drawn.splice(parts.length)) this.#remove(drawn);
        for (const [number, part] of parts.entries()) {
            let drawn = this.#drawn[number];
            if (!drawn?.fits(part)) {
                if (drawn) this.#remove(drawn);
                drawn = "depth" in part ? new Surface(part) : new Squares();
                drawn.object.frustumCulled = false;
                this.#scene.add(drawn.object);
                this.#drawn[number] = drawn;
            }
            drawn.take(part);
        }
    }

    #remove(drawn: Drawn): void {
        this.#scene.remove(drawn.object);
        drawn.dispose();
    }
}

/** A surface through the pixels of a view. */
class Surface implements Drawn {
    readonly object: Mesh<BufferGeometry, RawShaderMaterial>;
    #depth: DataTexture;
    #color: DataTexture;
    #toClip = new Matrix4();

    constructor({ columns, rows }: ViewPart) {
        this.#depth = new DataTexture(null, columns, rows, RedIntegerFormat, UnsignedShortType);
        this.#depth.internalFormat = "R16UI";
        this.#color = new DataTexture(null, columns, rows, RGBFormat);
        this.#color.internalFormat = "RGB8";
        const material = new RawShaderMaterial({
            glslVersion: GLSL3,
            vertexShader: VIEW_VERTEX,
            fragmentShader: VIEW_FRAGMENT,
            uniforms: {
                toClip: { value: this.#toClip },
                depth: { value: this.#depth },
                color: { value: this.#color },
            },
            side: DoubleSide,
        });
        this.object = new Mesh(new BufferGeometry(), material);
    }

    fits(part: Part): boolean {
        const { width, height } = this.#depth.image;
        return "depth" in part && part.columns === width && part.rows === height;
    }

    take({ depth, color, triangles }: ViewPart): void {
        for (const [texture, data] of [
            [this.#depth, depth],
            [this.#color, color],
        ] as const) {
            texture.image.data = data;
            texture.needsUpdate = true;
        }
        this.object.geometry.dispose();
        this.object.geometry = new BufferGeometry().setIndex(new BufferAttribute(triangles, 1));
    }

    place(toClip: Float32Array): void {
        this.#toClip.fromArray(toClip);
    }

    dispose(): void {
        for (const owned of [this.object.geometry, this.object.material, this.#depth, this.#color]) owned.dispose();
    }
}

/** Points, each a square that faces the viewer. */
class Squares implements Drawn {
    readonly object: Points<BufferGeometry, RawShaderMaterial>;
    #uniforms = { toClip: { value: new Matrix4() }, side: { value: 1 }, focal: { value: 1 } };
    #sideMm = 0;

    constructor() {
        const material = new RawShaderMaterial({
            glslVersion: GLSL3,
            vertexShader: POINTS_VERTEX,
            fragmentShader: POINTS_FRAGMENT,
            uniforms: this.#uniforms,
        });
        this.object = new Points(new BufferGeometry(), material);
    }

    fits(part: Part): boolean {
        return "packed" in part;
    }

    take({ packed, sideMm }: PointsPart): void {
        this.#sideMm = sideMm;
        const buffer = new InterleavedBuffer(packed, POINT_BYTES);
        const geometry = new BufferGeometry();
        for (const [name, bytes, at] of [
            ["xy", 4, 0],
            ["zrg", 4, 4],
            ["b", 1, 8],
        ] as const) {
            geometry.setAttribute(name, new InterleavedBufferAttribute(buffer, bytes, at));
        }
        geometry.setDrawRange(0, buffer.count);
        this.object.geometry.dispose();
        this.object.geometry = geometry;
    }

    place(toClip: Float32Array, columns: number): void {
        const { elements } = this.#uniforms.toClip.value.fromArray(toClip);
        // The first row of the matrix is a unit vector by twice the focal length as a share of the columns.
        const focal = (columns / 2) * Math.hypot(elements[0], elements[4], elements[8]);
        this.#uniforms.focal.value = focal;
        this.#uniforms.side.value = focal * this.#sideMm;
    }

    dispose(): void {
        this.object.geometry.dispose();
        this.object.material.dispose();
    }
}
