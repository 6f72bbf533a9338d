import type { Http } from "./http.js";
import { type Feed, type Host, type Session, type State, type Want } from "./session.js";
export declare class Shared implements Feed {
    #private;
    readonly heads: Map<string, string>;
    constructor(http: Http, key: string, host: Host, open: (host: Host, positions: Map<string, string>) => Session, onSession: (session: Session | undefined) => void);
    get served(): Map<string, Want>;
    update(): void;
    check(unsure?: State): void;
    leave(forGood?: boolean): void;
}
