use crate::File;

/// Whether this program has the page.
pub const IS_BUILT: bool = true;

/// The files of the page.
pub(crate) const FILES: &[File] = &[
    (
        "index.html",
        "text/html; charset=utf-8",
        include_bytes!("../dist/index.html"),
    ),
    (
        "index.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/index.css"),
    ),
    (
        "index.js",
        "text/javascript",
        include_bytes!("../dist/index.js"),
    ),
    (
        "element.js",
        "text/javascript",
        include_bytes!("../dist/element.js"),
    ),
    (
        "worker.js",
        "text/javascript",
        include_bytes!("../dist/worker.js"),
    ),
    (
        "webgl.js",
        "text/javascript",
        include_bytes!("../dist/webgl.js"),
    ),
    (
        "playback.js",
        "text/javascript",
        include_bytes!("../dist/playback.js"),
    ),
    (
        "licences.txt",
        "text/plain; charset=utf-8",
        include_bytes!("../dist/licences.txt"),
    ),
    (
        "decoder.wasm",
        "application/wasm",
        include_bytes!("../dist/decoder.wasm"),
    ),
];

/// Those that only the page of the demonstration has.
pub(crate) const DEMO_FILES: &[File] = &[
    (
        "demo.html",
        "text/html; charset=utf-8",
        include_bytes!("../dist/demo.html"),
    ),
    (
        "demo.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/demo.css"),
    ),
    (
        "demo.js",
        "text/javascript",
        include_bytes!("../dist/demo.js"),
    ),
];
