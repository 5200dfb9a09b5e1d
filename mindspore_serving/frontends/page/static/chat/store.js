// Conversations in the browser's IndexedDB.  Where it refuses (a private window), they last as
// long as the page, and `isLasting` is false.

const NAME = "mindspore-serving";
const TABLE = "conversations";

export class Store {
  isLasting = true;
  #database = null;

  // Return all conversations, the latest change first.
  async open() {
    try {
      this.#database = await opened();
      const all = await this.#do("readonly", (table) => table.getAll());
      return all.sort((one, other) => other.changed - one.changed);
    } catch {
      this.isLasting = false;
      return [];
    }
  }

  async put(conversation) {
    await this.#do("readwrite", (table) => table.put(conversation));
  }

  async remove(id) {
    await this.#do("readwrite", (table) => table.delete(id));
  }

  #do(mode, act) {
    if (!this.#database) return Promise.resolve([]);
    const transaction = this.#database.transaction(TABLE, mode);
    const request = act(transaction.objectStore(TABLE));
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => reject(transaction.error); // also without space, at its end
    });
  }
}

function opened() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
