// Builds dist: one ES module for each entry of "exports" in package.json, with types.
// Prints the sizes, and fails if a module exceeds its bound. An argument names another
// folder than dist.
import { execFile } from "node:child_process";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { gzipSync } from "node:zlib";
import { build as bundle } from "esbuild";
import { minify } from "terser";

export const root = fileURLToPath(new URL(".", import.meta.url));

// The browsers of about the last two years.
const browsers = ["chrome120", "edge120", "firefox124", "safari17.4"];

// Most bytes of a module, compressed with gzip -9.
const bounds = { client: 9216, share: 4096, live: 2048, outbox: 2816 };

// Members that neither applications nor servers, other tabs or browsers see, and their letters, the same in all modules. No API of
// a browser has a member of such a name. The letters are those that compressed best of some that were tried.
const internal = {
  settle: "S", waiting: "i", check: "W", leave: "b", timer: "g", touch: "R", onRefused: "_", onTrouble: "T",
  lost: "e", offer: "h", update: "x", feed: "A", stop: "I", onItem: "j", base: "f", onLapse: "D", retry: "p",
  beacon: "v", onStart: "E", timeout: "o", isOwn: "J", iterate: "k", trouble: "d", bearer: "a", lapse: "u",
  want: "F", ask: "y", wants: "r", start: "w", life: "$", heads: "t", served: "s", bounds: "m", onFeed: "M",
  http: "n", granted: "c", offset: "l", epoch: "P", crowd: "K",
};

// Other clients in KiB, compressed with gzip -9, measured in November 2026.
const others = { phoenix: 8.4, AnyCable: 10.3, "socket.io": 13.4, "Durable Streams": 13.9, pusher: 19.1, centrifuge: 23.8, Ably: 57.9 };

/** Returns the names of the entries: client and so on. */
export async function entries() {
  const { exports } = JSON.parse(await readFile(join(root, "package.json"), "utf8"));
  return Object.values(exports).map((e) => /^\.\/dist\/(\w+)\.js$/.exec(e.default)[1]);
}

/** Builds the modules and their types into a folder. */
export async function build(folder) {
  const names = await entries();
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  // The class Problem is in client.js: the others import it from there, so that an error of one is known to all.
  const [client, ...others] = names;
  await bundleOnce([client], names, folder);
  await bundleOnce(others, [...names, "problem"], folder);
  // Some 2 % smaller.
  for (const name of names) {
    const file = join(folder, name + ".js");
    const { code } = await minify(await readFile(file, "utf8"), { module: true, compress: { passes: 3, ecma: 2022, unsafe_arrows: true, keep_fargs: false, hoist_funs: true, reduce_funcs: false, lhs_constants: false } });
    await writeFile(file, code.replace(/\$(\w+)\$/g, (_, name) => internal[name]) + "\n");
  }
  const tsc = [join(root, "node_modules/typescript/bin/tsc"), "--project", root, "--outDir", folder];
  await promisify(execFile)(process.execPath, tsc).catch((err) => {
    throw new Error("the types are wrong:\n" + err.stdout);
  });
}

// Bundles entries, but leaves the import of some modules, which browsers load on their own, as it is.
async function bundleOnce(names, apart, folder) {
  const keep = ({ path, kind }) => (kind === "entry-point" ? undefined : { path: path.replace("problem", "client").replace(/\.ts$/, ".js"), external: true });
  await bundle({
    absWorkingDir: root,
    entryPoints: names.map((name) => `src/${name}.ts`),
    outdir: folder,
    bundle: true,
    minify: true,
    format: "esm",
    target: browsers,
    legalComments: "none",
    mangleProps: new RegExp(`^(${Object.keys(internal).join("|")})$`),
    mangleCache: Object.fromEntries(Object.keys(internal).map((name) => [name, `$${name}$`])), // until terser is done, which names variables by frequency
    logLevel: "error",
    plugins: [{ name: "apart", setup: (b) => b.onResolve({ filter: new RegExp(`^(react|\\./(${apart.join("|")})\\.[jt]s)$`) }, keep) }],
  });
}

/** Returns the size of each module in bytes, as it is and compressed. */
export async function sizes(folder) {
  const all = [];
  for (const name of await entries()) {
    const code = await readFile(join(folder, name + ".js"));
    all.push({ name, bytes: code.length, gzip: gzipSync(code, { level: 9 }).length, bound: bounds[name] });
  }
  return all;
}

function table(modules) {
  const kib = (bytes) => (bytes / 1024).toFixed(1);
  const lines = modules.map((m) => [`pubsubjs ${m.name}.js`, kib(m.gzip), `${m.gzip} bytes` + (m.bound ? ` of ${m.bound}` : "")]);
  lines.push(...Object.entries(others).map(([name, size]) => [name, size.toFixed(1), ""]));
  return ["gzip -9                     KiB", ...lines.map(([a, b, c]) => (a.padEnd(24) + b.padStart(7) + "  " + c).trimEnd())].join("\n");
}

/** Throws if a module exceeds its bound. */
export function checkSizes(modules) {
  for (const m of modules) {
    if (m.gzip > m.bound) throw new Error(`${m.name}.js has ${m.gzip} bytes gzipped; its bound is ${m.bound}. Make it smaller.`);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const folder = process.argv[2] ?? join(root, "dist");
  try {
    await build(folder);
    const modules = await sizes(folder);
    console.log(table(modules));
    checkSizes(modules);
  } catch (err) {
    console.error("build: " + err.message);
    process.exitCode = 1;
  }
}
