// Whom a token names.

/** The claim `sub` of a JWT, which the server has yet to verify. Undefined if the token has none, or is no JWT. */
export function subjectOf(token = ""): string | undefined {
  try {
    const json = atob(token.split(".")[1]!.replace(/-/g, "+").replace(/_/g, "/"));
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(json, (c) => c.charCodeAt(0)))).sub;
  } catch {
    return undefined;
  }
}
