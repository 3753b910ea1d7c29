use crate::File;

/// Returns a file of the page, which the build has compressed.
macro_rules! file {
    ($name:literal, $kind:literal) => {
        (
            $name,
            $kind,
            include_bytes!(concat!("../dist/", $name, ".gz")),
        )
    };
}

/// Whether this program has the page.
pub const IS_BUILT: bool = true;

/// The files of the page.
pub(crate) const FILES: &[File] = &[
    file!("index.html", "text/html; charset=utf-8"),
    file!("index.css", "text/css; charset=utf-8"),
    file!("index.js", "text/javascript"),
    file!("element.js", "text/javascript"),
    file!("worker.js", "text/javascript"),
    file!("webgl.js", "text/javascript"),
    file!("playback.js", "text/javascript"),
    file!("licences.txt", "text/plain; charset=utf-8"),
    file!("decoder.wasm", "application/wasm"),
];

/// Those that only the page of the demonstration has.
pub(crate) const DEMO_FILES: &[File] = &[
    file!("demo.html", "text/html; charset=utf-8"),
    file!("demo.css", "text/css; charset=utf-8"),
    file!("demo.js", "text/javascript"),
];
