// The error of all modules. Only client.js has it: the others import it from there.

/** A refusal of the server (RFC 9457), or of this client. Programs decide by `code`. */
export class Problem extends Error {
  declare code: string;
  /** The HTTP status; 0 if the client found the problem. `message` says what is wrong, and the remedy. */
  declare status: number;
  /** What to change. */
  declare remedy?: string;
  /** How long to wait before a retry. */
  declare retryAfterMs?: number;
  constructor(code: string, detail: string, status = 0, said: { remedy?: string; retry_after_ms?: number } = {}) {
    const { remedy, retry_after_ms: retryAfterMs } = said;
    super(remedy ? detail + "; " + remedy : detail);
    Object.assign(this, { name: "Problem", code, status, remedy, retryAfterMs });
  }
}
