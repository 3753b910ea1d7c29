import { defineConfig } from "vite";

// Names without digests: media/page serves these files by name.
const output = { entryFileNames: "[name].js", chunkFileNames: "[name].js", assetFileNames: "[name][extname]" };

export default defineConfig({
    base: "./",
    build: {
        outDir: "../../media/page/dist",
        // It has a file of the tree.
        emptyOutDir: false,
        target: "es2023",
        modulePreload: false,
        assetsInlineLimit: 0,
        reportCompressedSize: true,
        rolldownOptions: { input: ["index.html", "demo.html"], output },
    },
    worker: { format: "es", rolldownOptions: { output } },
});
