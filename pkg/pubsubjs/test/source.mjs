// Loads a module of src, or a script, for a test.
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

/** Imports src/NAME.ts, for each copy anew. */
export async function source(name, copy = "") {
  const { outputFiles } = await build({
    entryPoints: [fileURLToPath(new URL(`../src/${name}.ts`, import.meta.url))],
    bundle: true,
    format: "esm",
    write: false,
    logLevel: "error",
  });
  return import("data:text/javascript;base64," + Buffer.from(outputFiles[0].contents).toString("base64") + "#" + copy);
}
