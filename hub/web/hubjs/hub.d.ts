// Generated from hub.js by tsc; go test . -run TestHubJSTypes -update makes it anew.
export type Position = {
    offset: number;
    epoch: string;
};
export type Who = {
    user: string;
    client: string;
    info?: any;
    roomInfo?: any;
};
export type Publication = {
    data: any;
    offset?: number;
    time?: number;
    tags?: Record<string, string>;
    by?: Who;
};
export type Step = {
    op: "add" | "create" | "set" | "merge" | "delete";
    key: string;
    value?: any;
    path?: string;
    by?: number;
    min?: number;
    max?: number;
    if_version?: number;
};
export type Resource = {
    key: string;
    version: number;
    value?: any;
    deleted?: boolean;
};
export type Result = {
    id: string;
    offset: number;
    epoch: string;
    resources: Resource[];
    replayed: boolean;
};
export type Page = {
    resources: Resource[];
    next?: string;
    offset: number;
    epoch: string;
};
export type Change = {
    key: string;
    value: any;
    previous: any;
    version: number;
    pending: boolean;
    operation?: string;
    user?: string;
};
export type HubOptions = {
    /**
     * ws:// or wss:// address; default: /connection/websocket of the page's host
     */
    url?: string;
    /**
     * a connection token
     */
    token?: string;
    /**
     * fetches a token: at first without token, and whenever
     * one has run out. When it throws a HubError with code "unauthorized", the hub stays disconnected.
     */
    getToken?: () => Promise<string> | string;
    /**
     * tells the server what kind of client this is
     */
    name?: string;
    /**
     * milliseconds for an answer, 5000
     */
    timeout?: number;
    /**
     * milliseconds: bound of the first wait before a reconnect, 200
     */
    minDelay?: number;
    /**
     * milliseconds: bound of all later ones, 20000
     */
    maxDelay?: number;
    /**
     * the class to use where there is no global one
     */
    WebSocket?: any;
};
export type RoomOptions = {
    /**
     * fetches a subscription token
     */
    getToken?: () => Promise<string> | string;
    /**
     * where to continue
     */
    since?: Position;
};
/**
 * A position in a room: the offset of the last publication that was processed.
 * @typedef {{offset: number, epoch: string}} Position
 *
 * Who published, joined or left.
 * @typedef {{user: string, client: string, info?: any, roomInfo?: any}} Who
 *
 * An event of a room. offset is absent in rooms without history.
 * @typedef {{data: any, offset?: number, time?: number, tags?: Record<string, string>, by?: Who}} Publication
 *
 * One step of an operation.
 * @typedef {{op: "add"|"create"|"set"|"merge"|"delete", key: string, value?: any, path?: string,
 *   by?: number, min?: number, max?: number, if_version?: number}} Step
 *
 * A resource: value is absent when it was deleted, or when it may not be read.
 * @typedef {{key: string, version: number, value?: any, deleted?: boolean}} Resource
 *
 * The result of an operation.
 * @typedef {{id: string, offset: number, epoch: string, resources: Resource[], replayed: boolean}} Result
 *
 * A page of resources; next is the after of the next page, absent at the end.
 * @typedef {{resources: Resource[], next?: string, offset: number, epoch: string}} Page
 *
 * A change of a live state. value is undefined when the resource is gone; pending says
 * that an operation of this client causes it that the server has not confirmed yet.
 * @typedef {{key: string, value: any, previous: any, version: number, pending: boolean,
 *   operation?: string, user?: string}} Change
 *
 * @typedef {object} HubOptions
 * @property {string} [url] ws:// or wss:// address; default: /connection/websocket of the page's host
 * @property {string} [token] a connection token
 * @property {() => Promise<string>|string} [getToken] fetches a token: at first without token, and whenever
 *   one has run out. When it throws a HubError with code "unauthorized", the hub stays disconnected.
 * @property {string} [name] tells the server what kind of client this is
 * @property {number} [timeout] milliseconds for an answer, 5000
 * @property {number} [minDelay] milliseconds: bound of the first wait before a reconnect, 200
 * @property {number} [maxDelay] milliseconds: bound of all later ones, 20000
 * @property {any} [WebSocket] the class to use where there is no global one
 *
 * @typedef {object} RoomOptions
 * @property {() => Promise<string>|string} [getToken] fetches a subscription token
 * @property {Position} [since] where to continue
 */
/**
 * What went wrong. code is the number of a protocol error or close frame, or the code of a
 * problem document ("version_conflict", "exists", …; see the table in the README), or
 * "disconnected" or "unauthorized" from here.
 */
export declare class HubError extends Error {
    code: string | number;
    /** It is worth another try. */
    temporary: boolean;
    /** @type {number|undefined} HTTP status of a problem. */
    status: number | undefined;
    /** @type {number|undefined} Index of the step that was refused. */
    step: number | undefined;
    /** @type {Resource|undefined} The resource that the step met, as it stands. */
    current: Resource | undefined;
    /** @param {number|string} code @param {string} message @param {Partial<HubError>} [more] */
    constructor(code: number | string, message: string, more?: Partial<HubError>);
}
export type Listener = (event: any) => void;
/** @typedef {(event: any) => void} Listener */
/** Emitter calls functions by name. A function that throws stops nobody else. */
declare class Emitter {
    #private;
    /**
     * @param {string} name
     * @param {Listener} listener
     * @returns {() => void} removes it again
     */
    on(name: string, listener: Listener): () => void;
    /** @param {string} name @param {any} [event] */
    emit(name: string, event?: any): void;
}
export type Request = {
    body: object;
    resolve: (reply: any) => void;
    reject: (e: HubError) => void;
    tries: number;
};
/**
 * A request that is sent again after each reconnect until it is answered. That is safe:
 * it reads, or it has an id that the server remembers.
 * @typedef {{body: object, resolve: (reply: any) => void, reject: (e: HubError) => void, tries: number}} Request
 */
/**
 * Hub is a connection that comes back by itself.
 *
 * Events: "state" (its state), "connected" ({client}), "disconnected" (HubError: why it will not
 * come back, or undefined after disconnect()), "error" (HubError: what failed and is tried
 * again), "message" (data that the server sent to this connection alone).
 */
export declare class Hub extends Emitter {
    #private;
    /** @type {"disconnected"|"connecting"|"connected"} */
    state: "disconnected" | "connecting" | "connected";
    /** Id of the connection. */
    client: string;
    /** @param {HubOptions} options */
    constructor(options: HubOptions);
    /** Connects, and reconnects until disconnect() or a refusal that no repeat can mend. */
    connect(): void;
    /** Disconnects. Requests without an answer are rejected; rooms keep their position. */
    disconnect(): void;
    /** @returns {Promise<void>} resolved once connected, rejected when that will not be */
    ready(): Promise<void>;
    /**
     * The room of a name, the same object each time.
     * @param {string} name
     * @param {RoomOptions} [options] of the first call
     */
    room(name: string, options?: RoomOptions): Room;
    /**
     * Calls a method of the server: get, list, snapshot, publish, operate.
     * @param {string} method
     * @param {object} data must carry an id if a repeat would do harm
     * @returns {Promise<any>}
     */
    rpc(method: string, data: object): Promise<any>;
    /**
     * Sends a command of the protocol until it is answered; for internal use.
     * @param {object} body
     * @returns {Promise<any>}
     */
    request(body: object): Promise<any>;
}
export type Send = (command: object, done?: (reply: any) => void) => void;
/** @typedef {(command: object, done?: (reply: any) => void) => void} Send */
/**
 * Room is a room of a hub. Get it from hub.room().
 *
 * Events: "publication" (Publication), "subscribed" ({recovered, wasRecovering, position}),
 * "unsubscribed" ({code, reason}), "join" and "leave" (Who), "error" (HubError).
 */
export declare class Room extends Emitter {
    #private;
    name: string;
    options: RoomOptions;
    /** @type {"unsubscribed"|"subscribing"|"subscribed"} */
    status: "unsubscribed" | "subscribing" | "subscribed";
    /** Of the last publication that was processed. @type {Position|undefined} */
    position: Position | undefined;
    /** The server subscribes this connection, not the client. */
    byServer: boolean;
    /** It is to be subscribed whenever there is a connection. */
    wanted: boolean;
    /**
     * @param {Hub} hub
     * @param {string} name
     * @param {RoomOptions} options
     * @param {Send} send
     * @param {() => boolean} greeted
     */
    constructor(hub: Hub, name: string, options: RoomOptions, send: Send, greeted: () => boolean);
    /** Subscribes, and again after each reconnect, from the last position. */
    subscribe(): void;
    /** Unsubscribes. The position is kept: subscribe() continues from it. */
    unsubscribe(): void;
    /**
     * Publishes. Resolved once it is committed; sent again after a reconnect under the same id,
     * so it is published once.
     * @param {any} data
     * @param {{id?: string}} [options]
     * @returns {Promise<{offset?: number, epoch?: string, replayed?: boolean}>}
     */
    publish(data: any, options?: {
        id?: string;
    }): Promise<{
        offset?: number;
        epoch?: string;
        replayed?: boolean;
    }>;
    /**
     * Changes resources, all of the steps or none. Sent again like a publication. Rejected with
     * code "version_conflict", "exists", "not_found", "out_of_range", … when the state says no.
     * @param {Step[]} steps
     * @param {{id?: string, data?: any}} [options]
     * @returns {Promise<Result>}
     */
    operate(steps: Step[], options?: {
        id?: string;
        data?: any;
    }): Promise<Result>;
    /**
     * @param {string} key
     * @returns {Promise<Resource|undefined>} undefined when there is none
     */
    get(key: string): Promise<Resource | undefined>;
    /**
     * A page of resources by key.
     * @param {{prefix?: string, after?: string, limit?: number}} [options]
     * @returns {Promise<Page>}
     */
    list(options?: {
        prefix?: string;
        after?: string;
        limit?: number;
    }): Promise<Page>;
    /** All resources with the position that they belong to. @returns {Promise<Page>} */
    snapshot(): Promise<Page>;
    /**
     * A page of publications: those after an offset, or with reverse those before it.
     * @param {{after?: number, limit?: number, reverse?: boolean}} [options]
     * @returns {Promise<{publications: Publication[], offset: number, epoch: string}>}
     */
    history(options?: {
        after?: number;
        limit?: number;
        reverse?: boolean;
    }): Promise<{
        publications: Publication[];
        offset: number;
        epoch: string;
    }>;
    /** Who is here, by the ids of their connections. @returns {Promise<Record<string, Who>>} */
    presence(): Promise<Record<string, Who>>;
    /** How many are here. @returns {Promise<{clients: number, users: number}>} */
    presenceStats(): Promise<{
        clients: number;
        users: number;
    }>;
    /** A live copy of the room's resources, the same object until it is closed. */
    state(): State;
    /** Subscribes on a connection; for the hub. @param {Send} send */
    join(send?: Send): Promise<void>;
    /** The server says that it is subscribed; for the hub. @param {any} result */
    joined(result: any): void;
    /** What the server says of the room; for the hub. @param {any} push */
    push(push: any): void;
    /** The connection has ended; for the hub. @param {HubError} [error] and does not come back */
    dropped(error?: HubError): void;
}
export type Pending = {
    id: string;
    steps: Step[];
};
/** An operation that the server has not confirmed. @typedef {{id: string, steps: Step[]}} Pending */
/**
 * State is a live copy of a room's resources: read them all, then follow the room's events.
 *
 * Events: "change" (Change) for each resource that changes, "reset" when all was read anew
 * because the room's history did not reach back far enough.
 */
export declare class State extends Emitter {
    #private;
    /** Resolved once all resources were read for the first time. @type {Promise<void>} */
    ready: Promise<void>;
    /** @param {Room} room @param {() => void} forget */
    constructor(room: Room, forget: () => void);
    /** @param {string} key @returns {any} the value; undefined when there is none. Do not change it. */
    get(key: string): any;
    /** @param {string} key @returns {number} what if_version must name; 0 when there is none */
    version(key: string): number;
    /** @param {string} [prefix] @returns {string[]} the keys, sorted */
    keys(prefix?: string): string[];
    /** @param {string} [prefix] @returns {[string, any][]} keys and values, sorted */
    entries(prefix?: string): [string, any][];
    /**
     * Operates and shows the outcome at once. It is taken back when the server refuses, and
     * done anew on top of what others have changed meanwhile.
     * @param {Step[]} steps
     * @param {{id?: string, data?: any}} [options]
     * @returns {Promise<Result>}
     */
    operate(steps: Step[], options?: {
        id?: string;
        data?: any;
    }): Promise<Result>;
    /** Ends it. The room stays subscribed. */
    close(): void;
    /** It is subscribed; for the room. @param {boolean} recovered */
    joined(recovered: boolean): void;
    /** It will not be ready; for the room. @param {HubError} error */
    failed(error: HubError): void;
    /**
     * Reads all resources; for the room. What was known before is forgotten: a server that was
     * restored from a copy may know less. Of what a page and an event tell, the higher version
     * holds.
     */
    load(): Promise<void>;
    /** An event of the room; for the room. @param {Publication} event */
    published({ data }: Publication): void;
}
export {};
